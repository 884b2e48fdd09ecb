"""`SessionOptions`: how a session runs a model; unknown names and wrong types are errors."""

from __future__ import annotations

import dataclasses
from typing import Any

from popdist_onnx.errors import ArgumentError, popart_exception
from popdist_onnx.types.enums import (
    AccumulateOuterFragmentSchedule,
    AutodiffStitchStrategy,
    BatchSerializationBatchSchedule,
    BatchSerializationMethod,
    BatchSerializationTransformContext,
    ExecutionPhaseIOSchedule,
    ExecutionPhaseSchedule,
    GradientTensorTrackingMethod,
    Instrumentation,
    MeanReductionStrategy,
    MergeVarUpdateType,
    RecomputationType,
    ReductionType,
    ReplicatedTensorSharding,
    SubgraphCopyingStrategy,
    SyntheticDataMode,
    TensorStorage,
    TileSet,
    VirtualGraphMode,
)
from popdist_onnx.types.settings import Settings, option, stored

# Groups of session options that are objects of their own.


@dataclasses.dataclass
class AutomaticLossScalingSettings(Settings):
    """Loss scaling that follows the gradients' histogram."""

    enabled: bool = option(False, "adapt the loss scale while training")
    binEdgeLocation: float = option(0.125, "the histogram's edge, as a share of the largest value")
    thresholdUpperCountProportion: float = option(1e-7, "share above the edge that lowers it")
    toTrackTensors: list = option(list, "the tensors to watch")
    updatePeriod: int = option(1, "weight updates between two adaptions")
    gradientTensorTrackingMethod: GradientTensorTrackingMethod = option(
        GradientTensorTrackingMethod.AllNonViewChangingGradientTensors,
        "which gradients are watched",
    )


@dataclasses.dataclass(init=False)
class TensorLocation(Settings):
    """Where a tensor lies in an IPU system.

    Args:
        *given: The attributes in their order; or the storage and whether replicas share.
        **named: The same by name.
    """

    storage: TensorStorage = stored(TensorStorage.OnChip, "the memory it lies in")
    loadTileSet: TileSet = stored(TileSet.Compute, "the tiles that load it")
    storageTileSet: TileSet = stored(TileSet.Compute, "the tiles that keep it")
    replicatedTensorSharding: ReplicatedTensorSharding = stored(
        ReplicatedTensorSharding.Off, "whether replicas keep a share each"
    )

    def __init__(self, *given: Any, **named: Any) -> None:
        fields = dataclasses.fields(self)
        names = [field.name for field in fields]
        if len(given) == 2 and isinstance(given[1], ReplicatedTensorSharding):  # noqa: PLR2004
            names = ["storage", "replicatedTensorSharding"]
        if len(given) > len(names):
            raise ArgumentError(
                "PD506",
                "TensorLocation takes fewer arguments",
                value=given,
                accepted=", ".join(names),
            )
        values = {field.name: field.default for field in fields}
        for name, value in (values | dict(zip(names, given, strict=False)) | named).items():
            setattr(self, name, value)


@dataclasses.dataclass
class TensorLocationSettings(Settings):
    """Where the tensors of one kind lie in an IPU system."""

    location: TensorLocation = stored(TensorLocation, "where they lie")
    minElementsForOffChip: int = stored(2, "fewer elements stay on the chip")
    minElementsForReplicatedTensorSharding: int = stored(8192, "fewer elements are not shared")

    def __setattr__(self, name: str, value: object) -> None:
        is_storage = name == "location" and isinstance(value, TensorStorage)
        super().__setattr__(name, TensorLocation(value) if is_storage else value)


@dataclasses.dataclass
class BatchSerializationSettings(Settings):
    """A batch computed piece by piece to save memory on an IPU."""

    factor: int = stored(0, "the number of pieces; 0 for none")
    concatOnVirtualGraphChange: bool = stored(True, "join the pieces between IPUs")
    concatOnExecutionPhaseChange: bool = stored(True, "join the pieces between phases")
    concatOnPipelineStageChange: bool = stored(True, "join the pieces between stages")
    transformContext: BatchSerializationTransformContext = stored(
        BatchSerializationTransformContext.Fwd, "before or after autodiff"
    )
    method: BatchSerializationMethod = stored(
        BatchSerializationMethod.UnrollDynamic, "how the pieces are written"
    )
    batchSchedule: BatchSerializationBatchSchedule = stored(
        BatchSerializationBatchSchedule.Isomorphic, "the order of the pieces"
    )


@dataclasses.dataclass
class ExecutionPhaseSettings(Settings):
    """A model computed phase by phase, with its state streamed."""

    phases: int = stored(0, "the number of phases; 0 for none")
    stages: int = stored(2, "the groups of IPUs that take turns")
    weightIOSchedule: ExecutionPhaseIOSchedule = stored(
        ExecutionPhaseIOSchedule.Preload, "when weights are loaded"
    )
    activationIOSchedule: ExecutionPhaseIOSchedule = stored(
        ExecutionPhaseIOSchedule.Preload, "when activations are loaded"
    )
    optimizerStateIOSchedule: ExecutionPhaseIOSchedule = stored(
        ExecutionPhaseIOSchedule.OnDemand, "when optimizer states are loaded"
    )
    accumulatorIOSchedule: ExecutionPhaseIOSchedule = stored(
        ExecutionPhaseIOSchedule.Preload, "when gradient sums are loaded"
    )
    schedule: ExecutionPhaseSchedule = stored(
        ExecutionPhaseSchedule.Interleaving, "the order of transfers and operators"
    )


@dataclasses.dataclass
class AccumulateOuterFragmentSettings(Settings):
    """In which order an IPU runs what it runs once per weight update."""

    schedule: AccumulateOuterFragmentSchedule = stored(
        AccumulateOuterFragmentSchedule.Serial, "the order"
    )
    excludedVirtualGraphs: list = stored(list, "the IPUs that keep the order of the graph")


@dataclasses.dataclass
class AutodiffSettings(Settings):
    """How backward sub-graphs are made; a host's read the forward tensors, which are kept."""

    stitchStrategy: AutodiffStitchStrategy = stored(
        AutodiffStitchStrategy.RecomputeAllNonInputs, "how they get the forward tensors"
    )


@dataclasses.dataclass
class ReplicatedCollectivesSettings(Settings):
    """How collectives between replicas are prepared."""

    prepareScheduleForMergingCollectives: bool = stored(False, "order collectives for merging")
    mergeAllReduceCollectives: bool = stored(False, "merge allreduces")


@dataclasses.dataclass
class DeveloperSettings(Settings):
    """Switches for developers of PopART."""

    timePartitionLoggerThresholdPercentage: float = stored(1.0, "the least share that is logged")


# Session options about IPUs: the value is kept, and has no effect on a host.


# The published options have untyped containers; so have these.
# mypy: disable-error-code="type-arg"
@dataclasses.dataclass
class PlacementOptions(Settings):
    """Which IPU computes and stores what, and when."""

    virtualGraphMode: VirtualGraphMode = stored(
        VirtualGraphMode.Off, "who assigns operators to IPUs"
    )
    enablePipelining: bool = stored(False, "run stages on different micro-batches at once")
    explicitPipelining: bool = stored(False, "write the pipeline into the graph")
    createImplicitPipeliningFwdOnlyProgram: bool = stored(False, "a forward program beside it")
    explicitRecomputation: bool = stored(False, "write recomputation into the graph")
    enableExplicitMainLoops: bool = stored(False, "write the loops of a step into the graph")
    autoRecomputation: RecomputationType = stored(
        RecomputationType.NoRecompute, "which activations are computed again in backward"
    )
    batchSerializationSettings: BatchSerializationSettings = stored(
        BatchSerializationSettings, "compute a batch piece by piece"
    )
    executionPhaseSettings: ExecutionPhaseSettings = stored(
        ExecutionPhaseSettings, "compute a model phase by phase"
    )
    activationTensorLocationSettings: TensorLocationSettings = stored(
        TensorLocationSettings, "where activations lie"
    )
    weightTensorLocationSettings: TensorLocationSettings = stored(
        TensorLocationSettings, "where weights lie"
    )
    optimizerStateTensorLocationSettings: TensorLocationSettings = stored(
        TensorLocationSettings, "where optimizer states lie"
    )
    accumulatorTensorLocationSettings: TensorLocationSettings = stored(
        TensorLocationSettings, "where gradient sums lie"
    )
    tensorLocationSettingsOverride: dict = stored(dict, "where single tensors lie")
    replicatedCollectivesSettings: ReplicatedCollectivesSettings = stored(
        ReplicatedCollectivesSettings, "how collectives between replicas are prepared"
    )
    accumulateOuterFragmentSettings: AccumulateOuterFragmentSettings = stored(
        AccumulateOuterFragmentSettings, "the order of what runs once per weight update"
    )
    autodiffSettings: AutodiffSettings = stored(
        AutodiffSettings, "how backward sub-graphs get the forward tensors"
    )
    enableMergeExchange: bool = stored(True, "merge transfers that stand side by side")
    groupHostSync: bool = stored(False, "group the transfers from the host at a step's begin")
    numIOTiles: int = stored(0, "tiles reserved for transfers")
    useHostCopyOps: bool = stored(False, "write host transfers into the graph")
    aliasZeroCopy: bool = stored(False, "share memory between sub-graph operands")
    delayVarUpdates: bool = stored(True, "update weights as late as possible")
    scheduleNonWeightUpdateGradientConsumersEarly: bool = stored(
        False, "use gradients early where no weight is updated"
    )


@dataclasses.dataclass
class CompilationOptions(Settings):
    """How a graph becomes an IPU program."""

    enableOutlining: bool = stored(True, "share the code of repeated parts")
    enableOutliningCopyCostPruning: bool = stored(True, "weigh copies while sharing code")
    outlineThreshold: float = stored(1.0, "the least gain of shared code")
    outlineSequenceBreakCost: float = stored(10000.0, "the cost of a break in shared code")
    subgraphCopyingStrategy: SubgraphCopyingStrategy = stored(
        SubgraphCopyingStrategy.OnEnterAndExit, "when sub-graph operands are copied"
    )
    decomposeGradSum: bool = stored(False, "sum gradients one by one")
    mergeVarUpdate: MergeVarUpdateType = stored(
        MergeVarUpdateType.Off, "which weight updates are merged"
    )
    mergeVarUpdateMemThreshold: int = stored(1000000, "bytes at which merging ends")
    looseThresholdAtPeak: int = stored(8000, "bytes at which loose merging ends")
    rearrangeAnchorsOnHost: bool = stored(True, "reorder anchors on the host")
    rearrangeStreamsOnHost: bool = stored(False, "reorder inputs on the host")
    enablePrefetchDatastreams: bool = stored(True, "fetch inputs ahead")
    defaultPrefetchBufferingDepth: int = stored(1, "how far ahead inputs are fetched")
    prefetchBufferingDepthMap: dict = stored(dict, "how far ahead single inputs are fetched")
    compileEngine: bool = stored(True, "compile when the device is prepared")
    enableEngineCaching: bool = stored(False, "keep compiled programs on disk")
    cachePath: str = stored("session_cache", "where compiled programs are kept")
    enableVariablesCaching: bool = stored(True, "keep weights with a compiled program")
    disableGradAccumulationTensorStreams: bool = stored(
        False, "do not copy gradient sums to the host"
    )
    enableFullyConnectedPass: bool = stored(True, "plan matmuls for training")
    enableSerializedMatmuls: bool = stored(True, "allow matmuls in pieces")
    enableSupportedDataTypeCasting: bool = stored(False, "cast types that an IPU lacks")
    enableNonStableSoftmax: bool = stored(
        False, "softmax without subtracting the largest value; ONNX Runtime always subtracts it"
    )
    enableStableNorm: bool = stored(False, "variances by a slower, more accurate formula")
    enableStochasticRounding: bool = stored(False, "round half precision at random")
    ensureFp32LossScaleTensor: bool = stored(False, "keep the loss scale in single precision")
    enableConstantFoldingOfMultipleConsumers: bool = stored(True, "fold shared constants")
    meanAccumulationAndReplicationReductionStrategy: MeanReductionStrategy = stored(
        MeanReductionStrategy.Post, "when a mean is divided; equal up to rounding"
    )
    partialsTypeMatMuls: str = stored("", "the type of partial sums")
    throwIfLog2ScaleFactorsNotSpecified: bool = stored(True, "refuse 8-bit floats without scale")
    strictOpVersions: bool = stored(True, "refuse operator versions that PopART lacks")
    kahnTieBreaker: str = stored("greedy", "how the scheduler breaks ties")
    timeLimitScheduler: float = stored(1e9, "seconds the scheduler may take")
    swapLimitScheduler: int = stored(1000000000, "exchanges the scheduler may try")
    transitiveClosureOptimizationThreshold: int = stored(100000, "a limit of the scheduler")
    customCodelets: list = stored(list, "files with kernels for IPUs")
    customCodeletCompileFlags: str = stored("", "how these files are compiled")
    engineOptions: dict = stored(dict, "options of the Poplar engine")
    convolutionOptions: dict = stored(dict, "options of convolutions")
    lstmOptions: dict = stored(dict, "options of LSTMs")
    matmulOptions: dict = stored(dict, "options of matmuls")
    gclOptions: dict = stored(dict, "options of collectives")


@dataclasses.dataclass
class ReportingOptions(Settings):
    """The reports that a session writes."""

    logDir: str = stored("", "where graphs are drawn")
    dotChecks: set = stored(set, "the passes after which the graph is drawn")
    firstDotOp: int = stored(0, "the first operator drawn")
    finalDotOp: int = stored(10000, "the last operator drawn")
    dotOpNames: bool = stored(False, "draw operator names")
    exportPoplarComputationGraph: bool = stored(False, "draw the computation graph")
    exportPoplarVertexGraph: bool = stored(False, "draw the vertex graph")
    separateCallOpPdfs: bool = stored(True, "draw sub-graphs on their own")
    serializedPoprithmsShiftGraphsDir: str = stored("", "where the scheduler's graphs are written")
    opxAliasChecking: bool = stored(False, "check which operators share memory")
    opxModifyChecking: bool = stored(False, "check which operators write to their inputs")
    hardwareInstrumentations: set = stored(
        lambda: {Instrumentation.Outer}, "which part of a step is counted"
    )
    reportOptions: dict = stored(dict, "options of Poplar's reports")
    developerSettings: DeveloperSettings = stored(
        DeveloperSettings, "switches for those who work on PopART"
    )


# Session options that have an effect on a host.


@dataclasses.dataclass
class HostOptions(Settings):
    """The options that decide what a session computes."""

    enableGradientAccumulation: bool = option(
        False, "sum gradients over several micro-batches before an update"
    )
    accumulationFactor: int = option(1, "micro-batches per weight update")
    accumulationAndReplicationReductionType: ReductionType = option(
        ReductionType.Sum, "how gradients combine over micro-batches and replicas"
    )
    enableReplicatedGraphs: bool = option(False, "run several replicas in this process")
    replicatedGraphCount: int = option(1, "replicas in this process")
    enableDistributedReplicatedGraphs: bool = option(
        False, "this process holds some of the replicas of a job"
    )
    globalReplicationFactor: int = option(1, "replicas of the whole job")
    globalReplicaOffset: int = option(0, "the job's number of this process's first replica")
    hostAllReduce: bool = option(False, "exchange gradients on the host before each update")
    hostWeightUpdate: bool = option(
        False, "load weights from the program's functions instead of updating them"
    )
    hostAllReduceRemoteBuffer: bool = option(
        False, "send gradients through a remote buffer; on a host, ordinary memory"
    )
    automaticLossScalingSettings: AutomaticLossScalingSettings = option(
        AutomaticLossScalingSettings, "adapt the loss scale while training"
    )
    constantWeights: bool = option(True, "an inference session's weights never change")
    syntheticDataMode: SyntheticDataMode = option(
        SyntheticDataMode.Off, "make up the inputs and copy nothing"
    )
    enableFloatingPointChecks: bool = option(
        False, "stop at the first gradient or weight that is not finite"
    )
    groupNormStridedChannelGrouping: bool = option(
        False, "group normalisation takes every n-th channel into a group"
    )
    enableLoadAndOffloadRNGState: bool = option(
        False, "let programs read and set the state of the random streams"
    )
    instrumentWithHardwareCycleCounter: bool = option(
        False, "count the cycles of a step; on a host, nanoseconds"
    )


# Names of releases 1.3 to 2.0.
_OLDER = {"accumulationReductionType": "accumulationAndReplicationReductionType"}


@dataclasses.dataclass
class SessionOptions(HostOptions, PlacementOptions, CompilationOptions, ReportingOptions):
    """How a session runs a model.

    Options about IPUs keep the value that a program gives them and change nothing. Setting a name
    that is not an option is an error here; PopART's binding accepts such a name silently.
    """

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(_OLDER.get(name, name), value)

    def __getattr__(self, name: str) -> Any:
        # Called for missing attributes only.
        return getattr(self, _OLDER[name]) if name in _OLDER else super().__getattr__(name)

    def getGlobalReplicationFactor(self) -> int:
        """The number of replicas over which a mean of gradients is taken.

        Returns:
            Those of all instances, where the options say that there are several.
        """
        if self.enableDistributedReplicatedGraphs:
            return self.globalReplicationFactor
        return self.replicatedGraphCount if self.enableReplicatedGraphs else 1

    def getAccumulationFactor(self) -> int:
        """The number of micro-batches per weight update.

        Returns:
            ``accumulationFactor``.

        Raises:
            popart_exception: It is larger than 1 although accumulation is switched off.
        """
        if self.accumulationFactor > 1 and not self.enableGradientAccumulation:
            raise popart_exception(
                "PD572",
                "enableGradientAccumulation is false, but accumulationFactor > 1. Either enable "
                "gradient accumulation, or set the accumulation factor to 1",
            )
        return self.accumulationFactor
