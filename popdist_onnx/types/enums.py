"""The enumerations of the PopART API."""

from __future__ import annotations

from enum import Enum, IntEnum


class AnchorReturnTypeId(IntEnum):
    """Which of a step's values of an anchored tensor come back."""

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3


class ReductionType(IntEnum):
    """How a loss is reduced, and how gradients combine over accumulation and replicas."""

    Mean = 0
    NoReduction = 1
    Sum = 2


class MeanReductionStrategy(IntEnum):
    """When a mean over accumulation steps and replicas is divided; equal up to rounding."""

    Running = 0
    Post = 1
    PostAndLoss = 2


class VirtualGraphMode(IntEnum):
    """Who assigns operators to IPUs; nothing on a host depends on it."""

    Off = 0
    Manual = 1
    Auto = 2
    ExecutionPhases = 3


class SyntheticDataMode(IntEnum):
    """Where a step's inputs come from."""

    Off = 0
    Zeros = 1
    RandomNormal = 2


class RecomputationType(IntEnum):
    """Which activations are recomputed in the backward pass; a host keeps them all."""

    NoRecompute = 0
    Standard = 1
    NormOnly = 2
    Pipeline = 3
    RecomputeAll = 4


class RecomputeType(IntEnum):
    """Whether one operator's output is recomputed; a host keeps it."""

    Undefined = 0
    Checkpoint = 1
    Recompute = 2
    Recomputed = 3


class MergeVarUpdateType(IntEnum):
    """Which weight updates are merged; a host runs them one by one."""

    Off = 0
    All = 1
    AutoLoose = 2
    AutoTight = 3


class PatternsLevel(IntEnum):
    """The set of graph patterns to start from."""

    NoPatterns = 0
    Minimal = 1
    Default = 2
    All = 3


class SGDAccumulatorAndMomentum(IntEnum):
    """Whether SGD keeps gradient sum and velocity in one tensor or in two."""

    Combined = 0
    Separate = 1


class AdamMode(IntEnum):
    """The member of the Adam family."""

    Adam = 0
    AdamNoBias = 1
    AdaMax = 2
    Lamb = 3
    LambNoBias = 4


class AdaptiveMode(IntEnum):
    """The member of the family of adaptive optimizers."""

    AdaGrad = 0
    RMSProp = 1
    CenteredRMSProp = 2
    AdaDelta = 3


class WeightDecayMode(IntEnum):
    """Whether weight decay acts on the weight or on the gradient."""

    Decay = 0
    L2Regularization = 1


class DeviceType(IntEnum):
    """What a device is."""

    IpuModel = 0
    Cpu = 1
    Ipu = 2
    OfflineIpu = 3
    Sim = 4


class DeviceConnectionType(IntEnum):
    """When a device is attached to; `Never` is an offline device."""

    Always = 0
    OnDemand = 1
    Never = 2


class DeviceSelectionCriterion(IntEnum):
    """Which of several fitting devices is taken."""

    First = 0
    Random = 1


class SyncPattern(IntEnum):
    """How devices synchronise; nothing on a host depends on it."""

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2


class Instrumentation(IntEnum):
    """Which part of a step the cycle counter measures."""

    Outer = 0
    Inner = 1


class IrSerializationFormat(IntEnum):
    """The format of a written intermediate representation."""

    JSON = 0


class CommGroupType(IntEnum):
    """Which replicas take part in a collective."""

    All = 0
    Consecutive = 1
    Orthogonal = 2


class InitType(IntEnum):
    """What a tensor made by ``aiGraphcore.init`` holds."""

    NoInit = 0
    Zero = 1


class SubgraphCopyingStrategy(IntEnum):
    """When a sub-graph's operands are copied; nothing on a host depends on it."""

    OnEnterAndExit = 0
    JustInTime = 1


class TensorStorage(IntEnum):
    """On which memory of an IPU system a tensor lies; a host has one."""

    OnChip = 0
    OffChip = 1


class TileSet(IntEnum):
    """Which tiles of an IPU do an operator's work; nothing on a host depends on it."""

    Compute = 0
    IO = 1


class ReplicatedTensorSharding(IntEnum):
    """Whether replicas keep a share of a tensor each."""

    Off = 0
    On = 1


class GradientTensorTrackingMethod(IntEnum):
    """Which gradients automatic loss scaling watches."""

    AllNonViewChangingGradientTensors = 0
    ConvAndMatmulGradients = 1
    GradientsOfUserSpecifiedTensors = 2


class ScatterReduction(Enum):
    """How ``aiGraphcore.scatterreduce`` combines values that meet."""

    Sum = "Sum"
    Max = "Max"
    Min = "Min"
