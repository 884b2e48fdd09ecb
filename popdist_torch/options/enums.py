"""The enumerations of the PopTorch API, with their published values."""

from __future__ import annotations

from enum import Enum, IntEnum


class OutputMode(IntEnum):
    """Which outputs of a call come back; see `popdist_torch.executor.outputs`."""

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3
    Default = 4


AnchorMode = OutputMode
"""The name of `OutputMode` up to SDK 2.4."""


class ReductionType(IntEnum):
    """How gradients combine over accumulation and replicas."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class MeanReductionStrategy(IntEnum):
    """When a mean over accumulation steps and replicas is divided; equal up to rounding."""

    Running = 0
    Post = 1
    PostAndLoss = 2


class ConnectionType(IntEnum):
    """When devices are attached to; `Never` is an offline job."""

    Always = 0
    OnDemand = 1
    Never = 2


class SyncPattern(IntEnum):
    """How devices synchronise; nothing on a host depends on it."""

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2


class DataLoaderMode(IntEnum):
    """How `popdist_torch.DataLoader` reads; the adapter has `Sync`."""

    Sync = 0
    Async = 1
    AsyncRebatched = 2


class DataPartition(Enum):
    """How `popdist_torch.DataLoader` divides data over processes; an addition to PopTorch's API."""

    Contiguous = "contiguous"
    """Each process reads one range of the order, as PopTorch does."""
    Interleaved = "interleaved"
    """Each process reads its replicas' rows of every global micro-batch, so that the samples of an
    update are the same however replicas are laid out over processes."""


class AutoStage(IntEnum):
    """How blocks become stages; nothing on a host depends on it."""

    SameAsIpu = 0
    AutoIncrement = 1


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
