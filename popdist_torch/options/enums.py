"""The enumerations of the PopTorch API, with their published values."""

from __future__ import annotations

from enum import Enum, IntEnum

__all__ = [
    "AnchorMode",
    "AutoStage",
    "CommGroupType",
    "ConnectionType",
    "DataLoaderMode",
    "DataPartition",
    "HalfFloatCastingBehavior",
    "Liveness",
    "MatMulSerializationMode",
    "MeanReductionStrategy",
    "MultiConvPlanType",
    "OutputMode",
    "OverlapMode",
    "ReductionType",
    "SharingStrategy",
    "SyncPattern",
    "VariableRetrievalMode",
]


class OutputMode(IntEnum):
    """Which micro-batches' outputs a call returns; see `popdist_torch.executor.outputs`."""

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3
    Default = 4


AnchorMode = OutputMode
"""The name of `OutputMode` up to SDK 2.4."""


class ReductionType(IntEnum):
    """How gradients are combined over accumulation steps and replicas."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class MeanReductionStrategy(IntEnum):
    """When a sum over accumulation steps and replicas is divided; equal up to rounding."""

    Running = 0
    Post = 1
    PostAndLoss = 2


class HalfFloatCastingBehavior(IntEnum):
    """How half and single precision combined up to SDK 2.6; on a host, torch's own rules apply."""

    FloatDowncastToHalf = 0
    HalfUpcastToFloat = 1


class ConnectionType(IntEnum):
    """When the program attaches to devices; `Never` is an offline job."""

    Always = 0
    OnDemand = 1
    Never = 2


class SyncPattern(IntEnum):
    """How devices synchronise; no effect on a host."""

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2


class DataLoaderMode(IntEnum):
    """How `popdist_torch.DataLoader` reads."""

    Sync = 0
    Async = 1
    AsyncRebatched = 2


class SharingStrategy(IntEnum):
    """How the process of an accessor is started, and how it sends batches."""

    SharedMemory = 0
    FileSystem = 1
    Fork = 2
    ForkServer = 3


class DataPartition(Enum):
    """How `popdist_torch.DataLoader` divides data over processes; an addition to PopTorch's API."""

    Contiguous = "contiguous"
    """Each process reads one range of the order, as PopTorch does."""
    Interleaved = "interleaved"
    """Each process reads its replicas' rows of every global micro-batch, so that the samples of an
    update are the same however replicas are laid out over processes."""


class AutoStage(IntEnum):
    """How blocks become stages; no effect on a host."""

    SameAsIpu = 0
    AutoIncrement = 1


class Liveness(IntEnum):
    """How long tensors stay on an IPU; no effect on a host."""

    AlwaysLive = 0
    OffChipAfterFwd = 1
    OffChipAfterFwdNoOverlap = 2
    OffChipAfterEachPhase = 3


class CommGroupType(IntEnum):
    """Which replicas form a group."""

    All = 0
    Consecutive = 1
    Orthogonal = 2
    NoGrouping = 3


class VariableRetrievalMode(IntEnum):
    """Which replicas' values of a variable are returned to the host."""

    OnePerGroup = 0
    AllReplicas = 2


class MultiConvPlanType(IntEnum):
    """How several convolutions share an IPU; no effect on a host."""

    Parallel = 0
    Serial = 1


class MatMulSerializationMode(Enum):
    """Which dimension of a product is computed piece by piece on an IPU."""

    InputChannels = "input_channels"
    ReducingDim = "reducing_dim"
    OutputChannels = "output_channels"
    Disabled = "none"


class OverlapMode(Enum):
    """How data transfer overlaps with computation on an IPU."""

    NoOverlap = "no_overlap"
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"
