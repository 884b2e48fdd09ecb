"""The enumerations of the PopART API, its loggers and its `Patterns`."""

from __future__ import annotations

import logging
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any

from popdist_onnx.errors import ArgumentError, ValueRangeError

if TYPE_CHECKING:
    from collections.abc import Iterable


class AnchorReturnTypeId(IntEnum):
    """The values of an anchored tensor that a step returns."""

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
    """The kind of a device."""

    IpuModel = 0
    Cpu = 1
    Ipu = 2
    OfflineIpu = 3
    Sim = 4


class DeviceConnectionType(IntEnum):
    """When a session attaches to a device; `Never` is an offline device."""

    Always = 0
    OnDemand = 1
    Never = 2


class DeviceSelectionCriterion(IntEnum):
    """The choice among several devices that fit."""

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
    """The content of a tensor made by ``aiGraphcore.init``."""

    NoInit = 0
    Zero = 1


class SubgraphCopyingStrategy(IntEnum):
    """When a sub-graph's operands are copied; nothing on a host depends on it."""

    OnEnterAndExit = 0
    JustInTime = 1


class TensorStorage(IntEnum):
    """The memory of an IPU system that holds a tensor; a host has one memory."""

    OnChip = 0
    OffChip = 1


class TileSet(IntEnum):
    """Which tiles of an IPU do an operator's work; nothing on a host depends on it."""

    Compute = 0
    IO = 1


class ReplicatedTensorSharding(IntEnum):
    """Whether each replica keeps a share of a tensor."""

    Off = 0
    On = 1


class GradientTensorTrackingMethod(IntEnum):
    """Which gradients automatic loss scaling tracks."""

    AllNonViewChangingGradientTensors = 0
    ConvAndMatmulGradients = 1
    GradientsOfUserSpecifiedTensors = 2


class AccumulateOuterFragmentSchedule(IntEnum):
    """The order of what runs once per weight update; a host runs one operator after the other."""

    Scheduler = 0
    Serial = 1
    OverlapCycleOptimized = 2
    OverlapMemoryOptimized = 3


class AutodiffStitchStrategy(IntEnum):
    """How a backward sub-graph gets the forward tensors it reads; they are kept here."""

    RecomputeMinimal = 0
    RecomputeAllNonInputs = 1
    AddFwdOutputs = 2
    SafeAddFwdOutputs = 3


class BatchSerializationBatchSchedule(IntEnum):
    """The order of the pieces of a serialised batch; a host computes the batch whole."""

    Scheduler = 0
    Isomorphic = 1
    OverlapOnIo = 2
    OverlapOnCompute = 3


class BatchSerializationMethod(IntEnum):
    """How the pieces of a serialised batch are written; a host computes the batch whole."""

    UnrollDynamic = 0
    UnrollStatic = 1
    Loop = 2


class BatchSerializationTransformContext(IntEnum):
    """Where a batch is serialised; a host computes the batch whole."""

    Fwd = 0
    Bwd = 1
    Forward = 0
    Backward = 1


class DotCheck(IntEnum):
    """The moments of compilation at which a graph is drawn; nothing is drawn on a host."""

    Fwd0 = 0
    Fwd1 = 1
    Bwd0 = 2
    PreAlias = 3
    Final = 4


class ExecutionPhaseIOSchedule(IntEnum):
    """When the tensors of an execution phase are loaded; a host has one phase."""

    Preload = 0
    OnDemand = 1


class ExecutionPhaseSchedule(IntEnum):
    """The order of transfers and operators of an execution phase; a host has one phase."""

    Interleaving = 0
    Batch = 1
    BatchClusteredIO = 2


class NumIOTiles(int):
    """A number of tiles reserved for transfers; a host has no tiles."""


class ScatterReduction(Enum):
    """How ``aiGraphcore.scatterreduce`` combines values with the same index."""

    Sum = "Sum"
    Max = "Max"
    Min = "Min"
    Mul = "Mul"
    NoReduction = "None"


# `getLogger`: PopART's names for the standard library's log levels.


_LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERR": logging.ERROR,
    "CRITICAL": logging.CRITICAL,
    "OFF": logging.CRITICAL + 10,
}
_ROOT = "popdist.onnx"


class Logger:
    """One of the adapter's loggers; the program adds the handlers.

    Args:
        name: The part of the adapter, or ``all``.
    """

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(_ROOT if name == "all" else f"{_ROOT}.{name}")
        self.debug = self._logger.debug
        self.info = self._logger.info
        self.warn = self._logger.warning
        self.err = self._logger.error
        self.critical = self._logger.critical

    def trace(self, message: str, *arguments: object) -> None:
        """Writes a message of the lowest level.

        Args:
            message: A format string of ``logging``.
            *arguments: The values of the format string.
        """
        self._logger.log(_LEVELS["TRACE"], message, *arguments)

    def setLevel(self, level: str) -> None:
        """Sets the lowest level whose messages are kept.

        Args:
            level: The level's name.

        Raises:
            ValueRangeError: There is no such level.
        """
        if level not in _LEVELS:
            raise ValueRangeError(
                "PD506", "not a log level", value=level, accepted=", ".join(_LEVELS)
            )
        self._logger.setLevel(_LEVELS[level])


def getLogger(name: str = "all") -> Logger:
    """The logger of a part of the adapter.

    Args:
        name: The part (``session``, ``builder``, ...), or ``all``.

    Returns:
        The logger.
    """
    return Logger(name)


# `Patterns`: PopART's graph patterns; ONNX Runtime optimises by its own rules.


class Patterns:
    """A level and switches by name, kept as the program sets them.

    ``patterns.InPlace = False`` and ``patterns.enablePattern("InPlace", False)`` mean the same.

    Args:
        level: The set to start from, or the names of the patterns to apply.
    """

    _level: PatternsLevel
    _switches: dict[str, bool]
    _runtime_asserts: bool

    def __init__(self, level: PatternsLevel | Iterable[str] = PatternsLevel.Default) -> None:
        names: list[str] = []
        if not isinstance(level, PatternsLevel):
            names, level = list(level), PatternsLevel.NoPatterns
        self.__dict__.update(
            _level=level, _switches=dict.fromkeys(names, True), _runtime_asserts=True
        )

    def enablePattern(self, name: str, value: bool) -> Patterns:
        """Switches one pattern.

        Args:
            name: The pattern.
            value: Whether it is applied.

        Returns:
            These patterns.

        Raises:
            ArgumentError: The value is not a bool.
        """
        if not isinstance(value, bool):
            raise ArgumentError("PD506", f"pattern {name} is switched by a bool", value=value)
        self._switches[name] = value
        return self

    def isPatternEnabled(self, name: str) -> bool:
        """Whether a pattern is applied.

        Args:
            name: The pattern.

        Returns:
            The pattern's switch if set, else whether the level applies patterns beyond the least.
        """
        return self._switches.get(name, self._level >= PatternsLevel.Default)

    def enableRuntimeAsserts(self, value: bool) -> Patterns:
        """Switches checks at run time.

        Args:
            value: Whether they are made.

        Returns:
            These patterns.
        """
        self.__dict__["_runtime_asserts"] = bool(value)
        return self

    def runtimeAssertsOn(self) -> bool:
        """Whether checks are made at run time.

        Returns:
            True unless the program has switched them off.
        """
        return self._runtime_asserts

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.isPatternEnabled(name)

    def __setattr__(self, name: str, value: object) -> None:
        self.enablePattern(name, value)  # type: ignore[arg-type]  # checked there

    def __repr__(self) -> str:
        return f"Patterns({self._level.name}, {self._switches})"
