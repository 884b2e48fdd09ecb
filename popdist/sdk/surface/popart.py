"""What ``popart`` publishes."""

from __future__ import annotations

from popdist.sdk.surface.vocabulary import refused, surface, without_effect, works


def _of(owner: str, names: str) -> tuple[str, ...]:
    return tuple(f"{owner}.{name}" for name in names.split())


_BUILDER = (
    works(
        "Builder",
        "DebugContext",
        "OpDefinition",
        *_of("OpDefinition", "inputs outputs attributes"),
        "OperatorIdentifier",
        "defaultAiGraphcoreOpset",
        "defaultAiOnnxMlOpset",
        "defaultAiOnnxOpset",
        "getSupportedOperations",
        "getSupportedOperationsDefinition",
    ),
    works(
        "packageHash",
        "versionNumber",
        "versionString",
        note="They describe the installed popdist.",
    ),
    works(
        *_of(
            "Builder",
            "addInputTensor addInitializedInputTensor addOutputTensor addUntypedInputTensor"
            " addInputTensorFromParentGraph createSubgraphBuilder setGraphName nameScope customOp"
            " reshape_const getModelProto saveModelProto saveInitializersExternally"
            " getInputTensorIds getOutputTensorIds getValueTensorIds getTrainableTensorIds"
            " getTensorShape getTensorDtypeString isInitializer addNodeAttribute nodeHasAttribute"
            " removeNodeAttribute getAllNodeAttributeNames getBoolNodeAttribute"
            " getInt64NodeAttribute getInt64VectorNodeAttribute getFloatNodeAttribute"
            " getFloatVectorNodeAttribute getStringNodeAttribute getStringVectorNodeAttribute"
            " aiGraphcore aiGraphcoreOpset1 aiOnnx aiOnnxOpset6 aiOnnxOpset7 aiOnnxOpset8"
            " aiOnnxOpset9 aiOnnxOpset10 aiOnnxOpset11",
        )
    ),
    without_effect(
        "It says where and when an IPU computes a node; the note stays on the node.",
        *_of(
            "Builder",
            "virtualGraph getVirtualGraph hasVirtualGraph pipelineStage getPipelineStage"
            " hasPipelineStage executionPhase schedulePriority recomputeOutput"
            " recomputeOutputInBackwardPass getRecomputeOutputInBackwardPass checkpointOutput"
            " excludePatterns setPartialsType getPartialsType setAvailableMemoryProportion"
            " setSerializeMatMul setInplacePreferences outlineAttributes",
        ),
    ),
)

_OPERATORS = (
    works(
        *_of(
            "Builder.aiOnnx",
            "abs acos acosh add argmax argmin asin asinh atan atanh averagepool batchnormalization"
            " cast ceil clip compress concat constant constantofshape conv convinteger"
            " convtranspose cos cosh depthtospace dequantizelinear div dropout elu equal erf exp"
            " expand eyelike flatten floor gather gemm globalaveragepool globallppool globalmaxpool"
            " greater gru hardmax hardsigmoid identity instancenormalization isinf isnan leakyrelu"
            " less log logical_and logical_not logical_or logical_xor logsoftmax lpnormalization"
            " lppool lrn lstm matmul matmulinteger max maxpool maxunpool mean"
            " meanvariancenormalization min mod mul multinomial neg nonmaxsuppression nonzero"
            " onehot pad pow prelu qlinearconv qlinearmatmul quantizelinear randomnormal"
            " logical_if loop scan"
            " randomnormallike randomuniform randomuniformlike reciprocal reducel1 reducel2"
            " reducelogsum reducelogsumexp reducemax reducemean reducemin reduceprod reducesum"
            " reducesumsquare relu reshape resize reversesequence rnn scatter selu shape shrink"
            " sigmoid sign sin sinh size slice softmax softplus softsign spacetodepth split sqrt"
            " squeeze sub sum tan tanh thresholdedrelu tile topk transpose unsqueeze where",
        )
    ),
    works(
        *_of(
            "Builder.aiOnnx",
            "maxroipool roialign stringnormalizer tfidfvectorizer",
        ),
        note="It runs, but no gradient passes through it: a weight before it is an error.",
    ),
    refused(
        "ONNX deprecates it in opset 10, and ONNX Runtime refuses it there.",
        "Builder.aiOnnx.upsample",
        instead="use resize, or a Builder with opset 9",
    ),
    works(
        *_of(
            "Builder.aiOnnxOpset11",
            "bitshift cumsum det dynamicquantizelinear gatherelements gathernd range round"
            " scatterelements scatternd unique",
        )
    ),
    works(
        *_of(
            "Builder.aiOnnxOpset11",
            "concatfromsequence sequenceat sequenceconstruct sequenceempty sequenceerase"
            " sequenceinsert sequencelength splittosequence",
        ),
        note="It runs, but no gradient passes through it: a weight before it is an error.",
    ),
    works(
        *_of(
            "Builder.aiGraphcore",
            "atan2 bitwiseand bitwisenot bitwiseor bitwisexnor bitwisexor call ctcloss"
            " depthtospace detach dynamicadd dynamicslice dynamicupdate dynamiczero expm1 fmod gelu"
            " groupnormalization identityloss init l1loss log1p lstm multiconv nllloss nop"
            " reducemedian remainder reshape reverse round scale scaledadd scatterreduce"
            " sequenceslice shapeddropout subsample ctcbeamsearchdecoder bucketize geluerf"
            " groupedgather groupedscatterreduce incrementmod nearbyint normalize_image slice sort"
            " swish",
        )
    ),
    without_effect(
        "It passes its input on: hosts have no tiles to map it to.",
        "Builder.aiGraphcore.tensorremap",
    ),
    works(
        "Builder.aiGraphcore.replicatedallreduce",
        note="Over the replicas of all instances, one in each process: replicas of one process run "
        "one after the other.",
    ),
    works(
        "Builder.aiGraphcore.printtensor",
        note="On standard error, after each micro-batch; not inside of loops and branches.",
    ),
    works(
        "Builder.aiGraphcore.abort",
        note="The update in which it happens is computed to its end; in the main graph only.",
    ),
    works(
        "Builder.aiGraphcore.packedDataBlock",
        note="The order of its operands is from memory.",
    ),
)

_TYPES = (
    works(
        "TensorInfo",
        *_of("TensorInfo", "shape rank nelms nbytes dim dataType data_type data_type_lcase"),
        "DataType",
        "DataFlow",
        *_of("DataFlow", "isAnchored nAnchors batchesPerStep anchors art"),
        "AnchorReturnType",
        *_of("AnchorReturnType", "id rp"),
        "AnchorReturnTypeId",
        *_of("AnchorReturnTypeId", "Final EveryN All Sum"),
        "InputShapeInfo",
        *_of("InputShapeInfo", "add get has getAllTensorIds"),
        "InputSettings",
        "ReductionType",
        *_of("ReductionType", "Mean NoReduction Sum"),
        "ScatterReduction",
        *_of("ScatterReduction", "Sum Max Min"),
        "InitType",
        *_of("InitType", "NoInit Zero"),
        "SyntheticDataMode",
        *_of("SyntheticDataMode", "Off Zeros RandomNormal"),
        "DeviceType",
        *_of("DeviceType", "IpuModel Cpu Ipu OfflineIpu Sim"),
        "DeviceConnectionType",
        *_of("DeviceConnectionType", "Always OnDemand Never"),
        "DeviceSelectionCriterion",
        *_of("DeviceSelectionCriterion", "First Random"),
        "IrSerializationFormat",
        "IrSerializationFormat.JSON",
        "getLogger",
    ),
    works(
        "GraphTransformer",
        *_of(
            "GraphTransformer",
            "getModelProto removeUnusedInputs prepareNodesForTraining convertFloatsToHalfs"
            " convertHalfsToFloats convertDoublesToFloats convertDoublesToHalfs"
            " convertBFloats16ToFloat32 convertINT8ToINT32 convertUINT8ToINT32 convertINT16ToINT32"
            " convertUINT16ToINT32 convertINT64ToINT32 convertInitializersToConstants"
            " convertAllFixedPointInitializersToConstants",
        ),
    ),
    without_effect(
        "ONNX Runtime optimises graphs by rules of its own.",
        "Patterns",
        *_of("Patterns", "enablePattern isPatternEnabled enableRuntimeAsserts"),
        "PatternsLevel",
        *_of("PatternsLevel", "All Default Minimal NoPatterns"),
    ),
    without_effect(
        "It describes how an IPU system is used; the option that takes it is kept.",
        "AccumulateOuterFragmentSchedule",
        *_of(
            "AccumulateOuterFragmentSchedule",
            "Scheduler Serial OverlapCycleOptimized OverlapMemoryOptimized",
        ),
        "AccumulateOuterFragmentSettings",
        "AutodiffSettings",
        "AutodiffStitchStrategy",
        *_of(
            "AutodiffStitchStrategy",
            "RecomputeMinimal RecomputeAllNonInputs AddFwdOutputs SafeAddFwdOutputs",
        ),
        "BatchSerializationBatchSchedule",
        *_of(
            "BatchSerializationBatchSchedule",
            "Scheduler Isomorphic OverlapOnIo OverlapOnCompute",
        ),
        "BatchSerializationMethod",
        *_of("BatchSerializationMethod", "UnrollDynamic UnrollStatic Loop"),
        "BatchSerializationSettings",
        "BatchSerializationTransformContext",
        *_of("BatchSerializationTransformContext", "Fwd Bwd Forward Backward"),
        "CommGroupType",
        *_of("CommGroupType", "All Consecutive Orthogonal"),
        "DeveloperSettings",
        "DotCheck",
        *_of("DotCheck", "Fwd0 Fwd1 Bwd0 PreAlias Final"),
        "ExchangeStrategy",
        "ExecutionPhaseIOSchedule",
        *_of("ExecutionPhaseIOSchedule", "Preload OnDemand"),
        "ExecutionPhaseSchedule",
        *_of("ExecutionPhaseSchedule", "Interleaving Batch BatchClusteredIO"),
        "ExecutionPhaseSettings",
        "Instrumentation",
        *_of("Instrumentation", "Outer Inner"),
        "MeanReductionStrategy",
        "NumIOTiles",
        "MergeVarUpdateType",
        *_of("MergeVarUpdateType", "Off All AutoTight AutoLoose"),
        "RecomputationType",
        *_of("RecomputationType", "NoRecompute Standard NormOnly Pipeline"),
        "RecomputeType",
        "ReplicatedCollectivesSettings",
        "ReplicatedStreamMode",
        "ReplicatedTensorSharding",
        "SubgraphCopyingStrategy",
        "SyncPattern",
        *_of("SyncPattern", "Full SinglePipeline ReplicaAndLadder"),
        "TensorLocation",
        "TensorLocationSettings",
        "TensorStorage",
        "TileSet",
        "VirtualGraphMode",
        *_of("VirtualGraphMode", "Off Manual Auto ExecutionPhases"),
    ),
    works(
        "AutomaticLossScalingSettings",
        "GradientTensorTrackingMethod",
        note="The loss scaling follows the share of large gradient elements.",
    ),
)

_OPTIONS = (
    works(
        "SessionOptions",
        *_of(
            "SessionOptions",
            "enableGradientAccumulation accumulationFactor accumulationAndReplicationReductionType"
            " accumulationReductionType enableReplicatedGraphs replicatedGraphCount"
            " enableDistributedReplicatedGraphs globalReplicationFactor globalReplicaOffset"
            " hostAllReduce hostWeightUpdate hostAllReduceRemoteBuffer"
            " automaticLossScalingSettings constantWeights syntheticDataMode"
            " enableFloatingPointChecks"
            " groupNormStridedChannelGrouping enableLoadAndOffloadRNGState"
            " instrumentWithHardwareCycleCounter getGlobalReplicationFactor"
            " getAccumulationFactor",
        ),
    ),
    without_effect(
        "It places work and tensors on IPUs.",
        *_of(
            "SessionOptions",
            "virtualGraphMode enablePipelining explicitPipelining"
            " createImplicitPipeliningFwdOnlyProgram explicitRecomputation enableExplicitMainLoops"
            " autoRecomputation batchSerializationSettings executionPhaseSettings"
            " activationTensorLocationSettings weightTensorLocationSettings"
            " optimizerStateTensorLocationSettings accumulatorTensorLocationSettings"
            " tensorLocationSettingsOverride replicatedCollectivesSettings numIOTiles"
            " accumulateOuterFragmentSettings autodiffSettings enableMergeExchange groupHostSync"
            " useHostCopyOps aliasZeroCopy delayVarUpdates"
            " scheduleNonWeightUpdateGradientConsumersEarly",
        ),
    ),
    without_effect(
        "It steers the compiler of IPU programs.",
        *_of(
            "SessionOptions",
            "enableOutlining enableOutliningCopyCostPruning outlineThreshold"
            " outlineSequenceBreakCost subgraphCopyingStrategy decomposeGradSum mergeVarUpdate"
            " mergeVarUpdateMemThreshold looseThresholdAtPeak rearrangeAnchorsOnHost"
            " rearrangeStreamsOnHost enablePrefetchDatastreams defaultPrefetchBufferingDepth"
            " prefetchBufferingDepthMap compileEngine enableEngineCaching cachePath"
            " enableVariablesCaching disableGradAccumulationTensorStreams enableFullyConnectedPass"
            " enableSerializedMatmuls enableSupportedDataTypeCasting enableNonStableSoftmax"
            " enableStableNorm enableStochasticRounding ensureFp32LossScaleTensor"
            " enableConstantFoldingOfMultipleConsumers"
            " meanAccumulationAndReplicationReductionStrategy partialsTypeMatMuls"
            " throwIfLog2ScaleFactorsNotSpecified strictOpVersions kahnTieBreaker"
            " timeLimitScheduler swapLimitScheduler transitiveClosureOptimizationThreshold"
            " customCodelets customCodeletCompileFlags engineOptions convolutionOptions lstmOptions"
            " matmulOptions gclOptions",
        ),
    ),
    without_effect(
        "It says what the compiler of IPU programs writes down.",
        *_of(
            "SessionOptions",
            "logDir dotChecks firstDotOp finalDotOp dotOpNames exportPoplarComputationGraph"
            " exportPoplarVertexGraph separateCallOpPdfs serializedPoprithmsShiftGraphsDir"
            " opxAliasChecking opxModifyChecking hardwareInstrumentations reportOptions"
            " developerSettings",
        ),
    ),
)

_BOTH_SESSIONS = (
    "prepareDevice run initAnchorArrays weightsFromHost weightsToHost readWeights writeWeights"
    " resetHostWeights setRandomSeed getRNGState setRNGState getCycleCount getInfo"
    " getSummaryReport getSerializedGraph getIr _serializeIr"
)

_SESSIONS = (
    works("TrainingSession", *_of("TrainingSession", _BOTH_SESSIONS)),
    works(
        *_of(
            "TrainingSession",
            "modelToHost updateOptimizerFromHost getHostReduceStreamIds connectStreamToCallback"
            " broadcastWeights",
        )
    ),
    works("InferenceSession", *_of("InferenceSession", _BOTH_SESSIONS)),
    refused(
        "There is no IPU program to report on.",
        "TrainingSession.getReport",
        "InferenceSession.getReport",
        instead="getSummaryReport(), or ONNX Runtime's profiler",
    ),
    refused(
        "There is no IPU executable to export or load.",
        *_of("TrainingSession", "compileAndExport loadExecutable"),
        *_of("InferenceSession", "compileAndExport loadExecutable"),
        instead="modelToHost(path) and the file it writes",
    ),
    works(
        "PyStepIO",
        "PyStepIO.enableRuntimeAsserts",
        "PyStepIOCallback",
        "PyWeightsIO",
        "DeviceManager",
        *_of(
            "DeviceManager",
            "createCpuDevice createIpuModelDevice createSimDevice createOfflineIPUDevice"
            " acquireAvailableDevice acquireDeviceById enumerateDevices"
            " tryAcquireAvailableDevice tryAcquireDeviceById",
        ),
        "DeviceInfo",
        *_of("DeviceInfo", "attach detach isAttached"),
    ),
    without_effect(
        "Attaching to a processor takes no time.", "DeviceManager.setOnDemandAttachTimeout"
    ),
)

_OPTIMIZER = (
    "insertSpecific hasSpecific lossScaling getLossScalingVal validReplacement getClipNormSettings"
)

_OPTIMIZERS = (
    works(
        "Optimizer",
        *_of("Optimizer", _OPTIMIZER),
        "OptimizerValue",
        *_of("OptimizerValue", "val isConst"),
        "OptimizerValueMap",
        *_of("OptimizerValueMap", "get getDefault hasSpecific"),
        "SGD",
        *_of("SGD", _OPTIMIZER),
        *_of("SGD", "learningRates weightDecays momentums dampenings velocityScalings"),
        "ConstSGD",
        "Adam",
        *_of("Adam", _OPTIMIZER),
        *_of("Adam", "learningRates weightDecays beta1s beta2s epss maxWeightNorms"),
        "Adaptive",
        *_of("Adaptive", _OPTIMIZER),
        *_of("Adaptive", "learningRates weightDecays alphas momentums epss"),
        "ClipNormSettings",
        *_of("ClipNormSettings", "clipWeights clipAllWeights"),
        "SGDAccumulatorAndMomentum",
        *_of("SGDAccumulatorAndMomentum", "Combined Separate"),
        "AdamMode",
        *_of("AdamMode", "Adam AdamNoBias AdaMax Lamb LambNoBias"),
        "AdaptiveMode",
        *_of("AdaptiveMode", "AdaGrad RMSProp CenteredRMSProp AdaDelta"),
        "WeightDecayMode",
        *_of("WeightDecayMode", "Decay L2Regularization"),
    ),
)

_ERRORS_AND_PREFIXES = (
    works(
        "OutOfMemoryException",
        "poplar_exception",
        "poplar_recoverable_runtime_error",
        "poplar_runtime_error",
        "poplar_unrecoverable_runtime_error",
        "poplibs_exception",
        "popart_exception",
        "popart_internal_exception",
        "popart_runtime_error",
    ),
    works(
        "hostReduceGradCopyPrefix",
        "hostReduceVarCopyPrefix",
        "reservedAccl1Prefix",
        "reservedAccl2Prefix",
        "reservedAccl3Prefix",
        "reservedAcclPrefix",
        "reservedAccumPrefix",
        "reservedDefaultAdamBeta1Prefix",
        "reservedDefaultAdamBeta2Prefix",
        "reservedDefaultAdamEpsPrefix",
        "reservedDefaultAdamGradientScalingPrefix",
        "reservedDefaultAdaptiveAlphaPrefix",
        "reservedDefaultAdaptiveEpsPrefix",
        "reservedDefaultAdaptiveGradientScalingPrefix",
        "reservedDefaultAdaptiveMomentumPrefix",
        "reservedDefaultDampeningScaleFactor1Prefix",
        "reservedDefaultDampeningScaleFactor2Prefix",
        "reservedDefaultLearningRatePrefix",
        "reservedDefaultMaxWeightNormPrefix",
        "reservedDefaultScaledLearningRate0Prefix",
        "reservedDefaultScaledLearningRate1Prefix",
        "reservedDefaultScaledLearningRate2Prefix",
        "reservedDefaultScaledMomentum1Prefix",
        "reservedDefaultScaledMomentum2Prefix",
        "reservedDefaultScaledWeightDecay1Prefix",
        "reservedDefaultWeightDecayPrefix",
        "reservedDefaultWeightDecayScaleFactor0Prefix",
        "reservedFinalReducedGradPrefix",
        "reservedGradientPrefix",
        "reservedLossScalingPrefix",
        "reservedSpecificAdamBeta1Prefix",
        "reservedSpecificAdamBeta2Prefix",
        "reservedSpecificAdamEpsPrefix",
        "reservedSpecificAdamGradientScalingPrefix",
        "reservedSpecificAdaptiveAlphaPrefix",
        "reservedSpecificAdaptiveEpsPrefix",
        "reservedSpecificAdaptiveGradientScalingPrefix",
        "reservedSpecificAdaptiveMomentumPrefix",
        "reservedSpecificDampeningScaleFactor1Prefix",
        "reservedSpecificDampeningScaleFactor2Prefix",
        "reservedSpecificLearningRatePrefix",
        "reservedSpecificMaxWeightNormPrefix",
        "reservedSpecificScaledLearningRate0Prefix",
        "reservedSpecificScaledLearningRate1Prefix",
        "reservedSpecificScaledLearningRate2Prefix",
        "reservedSpecificScaledMomentum1Prefix",
        "reservedSpecificScaledMomentum2Prefix",
        "reservedSpecificScaledWeightDecay1Prefix",
        "reservedSpecificWeightDecayPrefix",
        "reservedSpecificWeightDecayScaleFactor0Prefix",
        "reservedStepPrefix",
        "reservedUpdatedVarPrefix",
    ),
    works(
        "reservedAcclFinalOutPrefix",
        "reservedAcclToReducePrefix",
        "reservedAcclToUpdatePrefix",
        "reservedRandomSeedPrefix",
        "reservedRestoredPrefix",
        "reservedStashedPrefix",
        note="Only a compiler of IPU programs makes such tensors: no tensor here has the prefix.",
    ),
)

SURFACE = surface(
    "popart",
    "popdist_onnx",
    *_BUILDER,
    *_OPERATORS,
    *_TYPES,
    *_OPTIONS,
    *_SESSIONS,
    *_OPTIMIZERS,
    *_ERRORS_AND_PREFIXES,
)
