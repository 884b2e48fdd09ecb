"""Options that only an IPU uses: stored without effect, so that programs run unchanged.

They are top-level options and the groups ``Jit``, ``TensorLocations``, ``_Popart`` and
``Precision``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.errors import OptionError, OptionValueError
from popdist_torch.options.enums import SyncPattern
from popdist_torch.options.option_methods import (
    OptionMethod,
    at_least,
    flag,
    names,
    one_of,
    stored_only,
    text,
    with_effect,
    without_effect,
)
from popdist_torch.options.storage import OptionsDict
from popdist_torch.options.strategies import AutoStage, ExecutionStrategy, PipelinedExecution

if TYPE_CHECKING:
    from typing_extensions import Self


def _proportions(name: str, proportions: Any) -> dict[str, float]:
    if not isinstance(proportions, Mapping):
        raise OptionError("PD300", f"{name} takes fractions by device", value=proportions)
    for device, fraction in proportions.items():
        if not str(device).startswith("IPU") or not isinstance(fraction, int | float):
            raise OptionError(
                "PD300",
                f"{name} takes fractions by device",
                value={device: fraction},
                accepted="keys such as 'IPU0' with numbers",
            )
    return dict(proportions)


def _strategy(name: str, strategy: Any) -> ExecutionStrategy:
    if isinstance(strategy, AutoStage):
        return PipelinedExecution(strategy)
    if not isinstance(strategy, ExecutionStrategy):
        raise OptionError(
            "PD300",
            f"{name} takes an execution strategy",
            value=strategy,
            accepted="PipelinedExecution, ShardedExecution, SerialPhasedExecution, "
            "ParallelPhasedExecution or AutoStage",
        )
    return strategy


class DeviceOnlyOptions(OptionsDict):
    """Options without an effect on a host; each logs that once at debug level."""

    path = ""

    enableExecutableCaching = OptionMethod(
        "The folder for compiled programs; None for no caching.",
        "path",
        "cachePath",
        text,
        clears=True,
    )
    setExecutionStrategy = OptionMethod(
        "How blocks of the model are distributed over IPUs and time.",
        "strategy",
        "execution_strategy",
        _strategy,
    )
    setAvailableMemoryProportion = OptionMethod(
        'How much of each IPU\'s memory matrix operations may use, by ``"IPU<k>"``.',
        "available_memory_proportion",
        "available_memory_proportion",
        _proportions,
    )
    autoRoundNumIPUs = OptionMethod(
        "Whether the number of IPUs is rounded up to a power of two.",
        "auto_round_num_ipus",
        "auto_round_num_ipus",
        flag,
        default=True,
    )
    syncPattern = OptionMethod(
        "How devices synchronise.", "sync_pattern", "sync_pattern", one_of(SyncPattern)
    )
    logDir = OptionMethod("The folder for logs.", "log_dir", "log_dir", text)
    maxRepeatLogs = OptionMethod(
        "How often one log line may repeat; None for any number.",
        "max_repeat_logs",
        "max_repeat_logs",
        lambda name, lines: None if lines is None else at_least(0)(name, lines),
    )
    modelName = OptionMethod("The model's name in profiles.", "name", "model_name", text)
    enableStableNorm = OptionMethod(
        "Whether norms use the slower, more stable formula.", "enabled", "stable_norm", flag
    )
    showCompilationProgressBar = OptionMethod(
        "Whether compilation shows a progress bar.",
        "show",
        "show_compilation_progress_bar",
        flag,
        default=True,
    )
    relaxOptimizerAttributesChecks = OptionMethod(
        "Whether differences between an optimizer's groups are not reported.",
        "relax",
        "relax_optimizer_checks",
        flag,
        default=True,
    )
    logCycleCount = OptionMethod(
        "Whether the cycles of each call are counted.", "log_cycle_count", "log_cycle_count", flag
    )
    enableProfiling = OptionMethod(
        "The folder for profiles; None for the current folder.",
        "profile_dir",
        "profile_dir",
        lambda name, folder: "." if folder is None else text(name, folder),
        default=None,
    )
    sourceLocationExcludes = OptionMethod(
        "Files that are never named as the source of an operation.",
        "excludes",
        "source_location_excludes",
        names,
    )

    @without_effect
    def appendToLocationExcludes(self, *excludes: str) -> Self:
        """More files that are never named as the source of an operation.

        Args:
            *excludes: Their names, or parts of them.

        Returns:
            These options.
        """
        before = self.values().get("source_location_excludes", [])
        more = names("appendToLocationExcludes", excludes)
        self.createOrSet(source_location_excludes=[*before, *more])
        return self

    @without_effect
    def disableModuleNamescope(self) -> Self:
        """Whether operations are named without the modules they belong to.

        Returns:
            These options.
        """
        self.createOrSet(module_namescope_enabled=False)
        return self


# ``Options.Jit``: graph building; on a host models run eagerly, unless ``torchCompile`` is called.


class JitOptions(OptionsDict):
    """Options of graph building."""

    path = "Jit."

    @without_effect
    def traceModel(self, trace_model: bool) -> JitOptions:
        """Accepts the dispatcher, PopTorch's only way since SDK 3.

        Args:
            trace_model: False.

        Returns:
            These options.

        Raises:
            OptionValueError: True was given.
        """
        if flag("traceModel", trace_model):
            raise OptionValueError(
                "PD300", "tracing was removed from PopTorch in SDK 3", accepted="False"
            )
        return self

    @with_effect("`torch.compile` compiles the model, as PopTorch compiles every model")
    def torchCompile(self, enabled: bool = True, **settings: Any) -> JitOptions:
        """Compiles the model with ``torch.compile``; an addition to PopTorch.

        The first call runs eagerly, and later ones run compiled code. The program's own module is
        not changed.

        Args:
            enabled: Whether the model is compiled.
            **settings: Passed to ``torch.compile``, such as ``backend``, ``mode`` or ``dynamic``.

        Returns:
            These options.

        Raises:
            OptionError: ``torch.compile`` has no such setting.
        """
        known = [name for name in inspect.signature(torch.compile).parameters if name != "model"]
        if unknown := [name for name in settings if name not in known]:
            raise OptionError(
                "PD300",
                "torch.compile has no such setting",
                value=", ".join(unknown),
                accepted=", ".join(known),
            )
        if flag("torchCompile", enabled):
            self.put("torch_compile", settings)
        else:
            self.deleteIfExists("torch_compile")
        return self

    @property
    def compile_settings(self) -> dict[str, Any] | None:
        """The settings of ``torchCompile``; None if the model is not compiled."""
        return self.values().get("torch_compile")


# ``Options.TensorLocations``: the memory of an IPU's tensors; a host has one memory.


_IO_TILES = range(32, 193, 2)


class TensorLocationSettings(OptionsDict):
    """Where one kind of tensor is stored."""

    path = "TensorLocationSettings."

    minElementsForOffChip = OptionMethod(
        "Smallest tensor that may be stored off the chip, in elements.",
        "min_elements",
        "minElementsForOffChip",
        at_least(0),
    )
    minElementsForReplicatedTensorSharding = OptionMethod(
        "Smallest tensor that is sharded over replicas, in elements.",
        "min_elements",
        "minElementsForReplicatedTensorSharding",
        at_least(0),
    )
    useOnChipStorage = OptionMethod(
        "Whether tensors stay on the chip; with None, the device decides.",
        "use",
        "onChip",
        flag,
        default=True,
        clears=True,
    )
    useReplicatedTensorSharding = OptionMethod(
        "Whether tensors are sharded over replicas.",
        "use",
        "useReplicatedTensorSharding",
        flag,
        default=True,
    )
    useIOTilesToLoad = OptionMethod(
        "Whether tiles reserved for transfer load the tensors.",
        "use",
        "useIOTilesToLoad",
        flag,
        default=True,
    )
    useIOTilesToStore = OptionMethod(
        "Whether tiles reserved for transfer store the tensors.",
        "use",
        "useIOTilesToStore",
        flag,
        default=True,
    )


def _settings(name: str, location: Any) -> dict[str, Any]:
    if not isinstance(location, TensorLocationSettings):
        raise OptionError("PD300", f"{name} takes TensorLocationSettings", value=location)
    return location.toDict()


def _io_tiles(name: str, tiles: Any) -> int:
    if tiles not in _IO_TILES:
        what = f"{name} must be an even number between 32 and 192."
        raise OptionError("PD300", what, value=tiles)
    return int(tiles)


class TensorLocationsOptions(OptionsDict):
    """Where each kind of tensor is stored."""

    path = "TensorLocations."

    setActivationLocation = OptionMethod(
        "Where activations are stored.", "location", "location_activation", _settings
    )
    setWeightLocation = OptionMethod(
        "Where weights are stored.", "location", "location_weight", _settings
    )
    setOptimizerLocation = OptionMethod(
        "Where optimizer state is stored.", "location", "location_optimizer", _settings
    )
    setAccumulatorLocation = OptionMethod(
        "Where gradient accumulators are stored.", "location", "location_accumulator", _settings
    )
    numIOTiles = OptionMethod(
        "How many tiles are reserved for transfer.", "num_tiles", "numIOTiles", _io_tiles
    )


# ``Options._Popart``: PopART's settings; here they are stored.


_PAIR = 2

SYNTHETIC_DATA = "syntheticDataMode"
"""The one session option with a meaning on a host: 0 for real data, else generated data."""


class PopartOptions(OptionsDict):
    """PopART session options by name."""

    path = "_Popart."

    def __init__(self) -> None:
        super().__init__(
            options={"instrumentWithHardwareCycleCounter": False, "rearrangeAnchorsOnHost": False},
            patterns={},
            patterns_level=2,
        )

    @with_effect("`syntheticDataMode` acts as `enableSyntheticData`; no other name does")
    # The published method takes a name and a value, unlike that of every other group.
    def set(self, *name_and_value: Any, **values: Any) -> PopartOptions:  # type: ignore[override]
        """Stores one PopART session option.

        Args:
            *name_and_value: The option's name, and its value.
            **values: As for every other group; used by attribute assignment.

        Returns:
            These options.

        Raises:
            OptionError: Not a name and a value.
        """
        if name_and_value:
            self._require_unfrozen()
            if len(name_and_value) != _PAIR:
                raise OptionError(
                    "PD300", "_Popart.set takes a name and a value", value=name_and_value
                )
            name, value = name_and_value
            if name != SYNTHETIC_DATA:
                stored_only(f"_Popart.{name}")
            self("options")[name] = value
        super().set(**values)
        return self

    @without_effect
    def setPatterns(self, patterns: Mapping[str, bool], level: int = 2) -> PopartOptions:
        """Stores which graph patterns PopART applies.

        Args:
            patterns: Switches by pattern.
            level: The set of patterns to start from.

        Returns:
            These options.
        """
        return self.set(patterns=dict(patterns), patterns_level=level)


# ``Options.Precision``: number formats of an IPU; on a host the model's dtypes decide.


_PARTIALS = {torch.float: "float", torch.half: "half"}


def _partials(name: str, dtype: Any) -> str:
    if dtype not in _PARTIALS:
        raise OptionValueError(
            "PD300",
            f"{name} takes a type of partial sums",
            value=dtype,
            accepted="torch.float or torch.half",
        )
    return _PARTIALS[dtype]


class PrecisionOptions(OptionsDict):
    """Options of the device's arithmetic."""

    path = "Precision."

    setPartialsType = OptionMethod(
        "The type of partial sums, ``torch.float`` or ``torch.half``.",
        "dtype",
        "partials_type",
        _partials,
    )
    enableStochasticRounding = OptionMethod(
        "Whether the device rounds to half precision at random.",
        "enabled",
        "stochastic_rounding",
        flag,
    )
    enableFloatingPointExceptions = OptionMethod(
        "Whether a model stops at overflows, divisions by zero and invalid operations.",
        "enabled",
        "floating_point_exceptions",
        flag,
        effect="a call raises `poptorch.Error` there (PD350), also of a result that nothing uses, "
        "which a compiler leaves out; checks each operation, so it is slow",
    )
    halfFloatCasting = OptionMethod(
        "How half and single precision combine; without effect in PopTorch too since SDK 3.",
        "half_float_casting",
        "half_float_casting",
        lambda _name, value: value,
    )
    runningStatisticsAlwaysFloat = OptionMethod(
        "Whether running statistics are kept in single precision.",
        "value",
        "running_statistics_always_float",
        flag,
    )
    autocastEnabled = OptionMethod(
        "Whether operations choose their precision by a policy (to SDK 2.6).",
        "autocast_enabled",
        "autocast_enabled",
        flag,
    )
    autocastPolicy = OptionMethod(
        "The policy of ``autocastEnabled`` (to SDK 2.6).",
        "autocast_policy",
        "autocast_policy",
        lambda _name, policy: policy,
    )
