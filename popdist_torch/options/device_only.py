"""Top-level options that only an IPU obeys: kept, so that programs run unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from popdist_torch.errors import OptionError
from popdist_torch.options.checks import at_least, flag, names, one_of, text
from popdist_torch.options.enums import SyncPattern
from popdist_torch.options.settings import Setting, without_effect
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
    """Options without an effect on a host; each says so once at debug level."""

    path = ""

    enableExecutableCaching = Setting(
        "The folder for compiled programs; None for no caching.",
        "path",
        "cachePath",
        text,
        clears=True,
    )
    setExecutionStrategy = Setting(
        "How blocks of the model are laid out over IPUs and time.",
        "strategy",
        "execution_strategy",
        _strategy,
    )
    setAvailableMemoryProportion = Setting(
        'How much of each IPU\'s memory matrix operations may use, by ``"IPU<k>"``.',
        "available_memory_proportion",
        "available_memory_proportion",
        _proportions,
    )
    autoRoundNumIPUs = Setting(
        "Whether the number of IPUs is rounded up to a power of two.",
        "auto_round_num_ipus",
        "auto_round_num_ipus",
        flag,
        default=True,
    )
    syncPattern = Setting(
        "How devices synchronise.", "sync_pattern", "sync_pattern", one_of(SyncPattern)
    )
    logDir = Setting("The folder for logs.", "log_dir", "log_dir", text)
    maxRepeatLogs = Setting(
        "How often one log line may repeat.", "max_repeat_logs", "max_repeat_logs", at_least(0)
    )
    modelName = Setting("The model's name in profiles.", "name", "model_name", text)
    enableStableNorm = Setting(
        "Whether norms use the slower, more stable formula.", "enabled", "stable_norm", flag
    )
    showCompilationProgressBar = Setting(
        "Whether compilation shows a progress bar.",
        "show",
        "show_compilation_progress_bar",
        flag,
        default=True,
    )
    relaxOptimizerAttributesChecks = Setting(
        "Whether differences between an optimizer's groups go unreported.",
        "relax",
        "relax_optimizer_checks",
        flag,
        default=True,
    )
    logCycleCount = Setting(
        "Whether the cycles of each call are counted.", "log_cycle_count", "log_cycle_count", flag
    )
    enableProfiling = Setting(
        "The folder for profiles; None for the present one.",
        "profile_dir",
        "profile_dir",
        lambda name, folder: "." if folder is None else text(name, folder),
        default=None,
    )
    sourceLocationExcludes = Setting(
        "Files that no operation is said to come from.",
        "excludes",
        "source_location_excludes",
        names,
    )

    @without_effect
    def appendToLocationExcludes(self, *excludes: str) -> Self:
        """More files that no operation is said to come from.

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
