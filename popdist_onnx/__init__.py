"""The ONNX adapter: any ONNX graph trained on stock ONNX Runtime, over the real Horovod.

`import popdist_onnx` costs next to nothing: every name resolves on first use (PEP 562). The names
of PopART are here as programs write them (``popart.SGD``, ``popart.DataFlow``);
``popdist_onnx.train`` and ``popdist_onnx.Trainer`` are for programs that never used it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

_HOMES: dict[str, tuple[str, ...]] = {
    "builder.builder": ("Builder",),
    "builder.graph_writer": (
        "defaultAiGraphcoreOpset",
        "defaultAiOnnxMlOpset",
        "defaultAiOnnxOpset",
    ),
    "builder.naming": ("DebugContext",),
    "builder.onnx_methods": (
        "OpDefinition",
        "OperatorIdentifier",
        "getSupportedOperations",
        "getSupportedOperationsDefinition",
        "packageHash",
        "versionNumber",
        "versionString",
    ),
    "errors": (
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
    "optimizers.adam": ("Adam",),
    "optimizers.adaptive": ("Adaptive",),
    "optimizers.optimizer": ("Optimizer",),
    "optimizers.sgd": (
        "SGD",
        "ConstSGD",
    ),
    "optimizers.values": (
        "ClipNormSettings",
        "OptimizerValue",
        "OptimizerValueMap",
    ),
    "prefixes": (
        "hostReduceGradCopyPrefix",
        "hostReduceVarCopyPrefix",
        "reservedAccl1Prefix",
        "reservedAccl2Prefix",
        "reservedAccl3Prefix",
        "reservedAcclFinalOutPrefix",
        "reservedAcclPrefix",
        "reservedAcclToReducePrefix",
        "reservedAcclToUpdatePrefix",
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
        "reservedRandomSeedPrefix",
        "reservedRestoredPrefix",
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
        "reservedStashedPrefix",
        "reservedStepPrefix",
        "reservedUpdatedVarPrefix",
    ),
    "session.devices": (
        "DeviceInfo",
        "DeviceManager",
    ),
    "session.inference": ("InferenceSession",),
    "session.step_io": (
        "PyStepIO",
        "PyStepIOCallback",
    ),
    "session.training": ("TrainingSession",),
    "session.weights": ("PyWeightsIO",),
    "training.callbacks": (
        "Callback",
        "Checkpoint",
        "EarlyStopping",
        "History",
    ),
    "training.global_mean": ("global_mean",),
    "training.torch_modules": (
        "from_torch",
        "to_torch",
    ),
    "training.trainer": (
        "Trainer",
        "train",
    ),
    "types.data_flow": (
        "AnchorReturnType",
        "DataFlow",
    ),
    "types.enums": (
        "AccumulateOuterFragmentSchedule",
        "AdamMode",
        "AdaptiveMode",
        "AnchorReturnTypeId",
        "AutodiffStitchStrategy",
        "BatchSerializationBatchSchedule",
        "BatchSerializationMethod",
        "BatchSerializationTransformContext",
        "CommGroupType",
        "DeviceConnectionType",
        "DeviceSelectionCriterion",
        "DeviceType",
        "DotCheck",
        "ExecutionPhaseIOSchedule",
        "ExecutionPhaseSchedule",
        "GradientTensorTrackingMethod",
        "InitType",
        "Instrumentation",
        "IrSerializationFormat",
        "MeanReductionStrategy",
        "MergeVarUpdateType",
        "NumIOTiles",
        "Patterns",
        "PatternsLevel",
        "RecomputationType",
        "RecomputeType",
        "ReductionType",
        "ReplicatedTensorSharding",
        "SGDAccumulatorAndMomentum",
        "ScatterReduction",
        "SubgraphCopyingStrategy",
        "SyncPattern",
        "SyntheticDataMode",
        "TensorStorage",
        "TileSet",
        "VirtualGraphMode",
        "WeightDecayMode",
        "getLogger",
    ),
    "types.graph_transformer": ("GraphTransformer",),
    "types.session_options": (
        "AccumulateOuterFragmentSettings",
        "AutodiffSettings",
        "AutomaticLossScalingSettings",
        "BatchSerializationSettings",
        "DeveloperSettings",
        "ExecutionPhaseSettings",
        "ReplicatedCollectivesSettings",
        "SessionOptions",
        "TensorLocation",
        "TensorLocationSettings",
    ),
    "types.tensor_info": (
        "DataType",
        "ExchangeStrategy",
        "InputSettings",
        "InputShapeInfo",
        "ReplicatedStreamMode",
        "TensorInfo",
    ),
}
"""Every public name by the sub-package that defines it."""

_PLACES = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_PLACES)  # noqa: PLE0605 - the table above is the only list


def __getattr__(name: str) -> Any:
    from importlib import import_module
    from importlib.util import find_spec

    if name in _PLACES:
        home: ModuleType = import_module(f"popdist_onnx.{_PLACES[name]}")
        return globals().setdefault(name, getattr(home, name))
    # Programs reach `popdist_onnx.horovod` after `import popdist_onnx` alone.
    if not name.startswith("_") and find_spec(f"popdist_onnx.{name}") is not None:
        return import_module(f"popdist_onnx.{name}")
    from popdist.sdk.surface import missing

    return missing(__name__, name)


def published(package: str, name: str) -> Any:
    """A public name by the sub-package that defines it, as in ``popart.session.TrainingSession``.

    Args:
        package: The sub-package's whole name.
        name: The name.

    Returns:
        What has the name.

    Raises:
        AttributeError: The sub-package defines no such public name.
    """
    if f"popdist_onnx.{_PLACES.get(name, '')}".startswith(f"{package}."):
        return __getattr__(name)
    raise AttributeError(f"module '{package}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
