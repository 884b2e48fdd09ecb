"""Groups of session options that are objects of their own."""

from __future__ import annotations

import dataclasses

from popdist_onnx.types.enums import (
    GradientTensorTrackingMethod,
    ReplicatedTensorSharding,
    TensorStorage,
    TileSet,
)
from popdist_onnx.types.settings import Settings, option, stored


@dataclasses.dataclass
class AutomaticLossScalingSettings(Settings):
    """Loss scaling that follows the gradients' histogram."""

    enabled: bool = option(False, "adapt the loss scale while training")
    binEdgeLocation: float = stored(0.125, "the histogram's edge, as a share of the largest value")
    thresholdUpperCountProportion: float = stored(1e-7, "share above the edge that lowers it")
    toTrackTensors: list = stored(list, "the tensors to watch")  # type: ignore[type-arg]
    updatePeriod: int = stored(1, "weight updates between two adaptions")
    gradientTensorTrackingMethod: GradientTensorTrackingMethod = stored(
        GradientTensorTrackingMethod.AllNonViewChangingGradientTensors,
        "which gradients are watched",
    )


@dataclasses.dataclass
class TensorLocation(Settings):
    """Where a tensor lies in an IPU system."""

    storage: TensorStorage = stored(TensorStorage.OnChip, "the memory it lies in")
    loadTileSet: TileSet = stored(TileSet.Compute, "the tiles that load it")
    storageTileSet: TileSet = stored(TileSet.Compute, "the tiles that keep it")
    replicatedTensorSharding: ReplicatedTensorSharding = stored(
        ReplicatedTensorSharding.Off, "whether replicas keep a share each"
    )


@dataclasses.dataclass
class TensorLocationSettings(Settings):
    """Where the tensors of one kind lie in an IPU system."""

    location: TensorLocation = stored(TensorLocation, "where they lie")
    minElementsForOffChip: int = stored(2, "fewer elements stay on the chip")
    minElementsForReplicatedTensorSharding: int = stored(8192, "fewer elements are not shared")


@dataclasses.dataclass
class BatchSerializationSettings(Settings):
    """A batch computed piece by piece to save memory on an IPU."""

    factor: int = stored(0, "the number of pieces; 0 for none")
    concatOnVirtualGraphChange: bool = stored(True, "join the pieces between IPUs")
    concatOnExecutionPhaseChange: bool = stored(True, "join the pieces between phases")
    concatOnPipelineStageChange: bool = stored(True, "join the pieces between stages")


@dataclasses.dataclass
class ExecutionPhaseSettings(Settings):
    """A model computed phase by phase, with its state streamed."""

    phases: int = stored(0, "the number of phases; 0 for none")
    stages: int = stored(2, "the groups of IPUs that take turns")


@dataclasses.dataclass
class ReplicatedCollectivesSettings(Settings):
    """How collectives between replicas are prepared."""

    prepareScheduleForMergingCollectives: bool = stored(False, "order collectives for merging")
    mergeAllReduceCollectives: bool = stored(False, "merge allreduces")


@dataclasses.dataclass
class DeveloperSettings(Settings):
    """Switches for those who work on PopART."""

    timePartitionLoggerThresholdPercentage: float = stored(1.0, "the least share that is logged")
