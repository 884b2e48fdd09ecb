"""Top-level options that only an IPU obeys: kept, so that programs run unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_torch.errors import OptionError
from popdist_torch.options.checks import flag, member, whole_number
from popdist_torch.options.effects import stored_only
from popdist_torch.options.enums import SyncPattern
from popdist_torch.options.storage import OptionsDict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self


class DeviceOnlyOptions(OptionsDict):
    """Options without an effect on a host; each says so once at debug level."""

    def setAvailableMemoryProportion(self, proportions: Mapping[str, float]) -> Self:
        """Stores how much of each IPU's memory matrix operations may use.

        Args:
            proportions: Fractions by ``"IPU<k>"``.

        Returns:
            These options.

        Raises:
            OptionError: A key that does not start with ``IPU``.
        """
        stored_only("setAvailableMemoryProportion")
        for key in proportions:
            if not key.startswith("IPU"):
                raise OptionError(
                    "PD300",
                    "setAvailableMemoryProportion takes fractions by device",
                    value=key,
                    accepted="keys such as 'IPU0'",
                )
        self.set(available_memory_proportion=dict(proportions))
        return self

    def autoRoundNumIPUs(self, auto_round_num_ipus: bool = True) -> Self:
        """Stores whether the number of IPUs is rounded up to a power of two.

        Args:
            auto_round_num_ipus: Whether it is.

        Returns:
            These options.
        """
        stored_only("autoRoundNumIPUs")
        self.set(auto_round_num_ipus=flag("autoRoundNumIPUs", auto_round_num_ipus))
        return self

    def syncPattern(self, sync_pattern: SyncPattern) -> Self:
        """Stores how devices synchronise.

        Args:
            sync_pattern: The pattern.

        Returns:
            These options.
        """
        stored_only("syncPattern")
        self.set(sync_pattern=member("syncPattern", sync_pattern, SyncPattern))
        return self

    def enableExecutableCaching(self, path: str | None) -> Self:
        """Stores the folder for compiled programs; eager models have none.

        Args:
            path: The folder; None for no caching.

        Returns:
            These options.
        """
        stored_only("enableExecutableCaching")
        if path is None:
            self.deleteIfExists("cachePath")
        else:
            self.createOrSet(cachePath=str(path))
        return self

    def anchorTensor(self, short_name: str, long_name: str) -> None:
        """Stores that a PopART tensor is to be read under a name of its own.

        Args:
            short_name: The program's name.
            long_name: PopART's name.
        """
        stored_only("anchorTensor")
        self._require_unfrozen()
        self("anchored_tensors")[short_name] = long_name

    def logDir(self, log_dir: str) -> Self:
        """Stores the folder for logs.

        Args:
            log_dir: The folder.

        Returns:
            These options.
        """
        stored_only("logDir")
        self.set(log_dir=str(log_dir))
        return self

    def maxRepeatLogs(self, max_repeat_logs: int) -> Self:
        """Stores how often one log line may repeat.

        Args:
            max_repeat_logs: Repetitions.

        Returns:
            These options.
        """
        stored_only("maxRepeatLogs")
        self.set(max_repeat_logs=whole_number("maxRepeatLogs", max_repeat_logs, least=0))
        return self

    def modelName(self, name: str) -> Self:
        """Stores the model's name in profiles.

        Args:
            name: The name.

        Returns:
            These options.
        """
        stored_only("modelName")
        self.createOrSet(model_name=str(name))
        return self

    def enableStableNorm(self, enabled: bool) -> Self:
        """Stores whether norms use the slower, more stable formula.

        Args:
            enabled: Whether they do.

        Returns:
            These options.
        """
        stored_only("enableStableNorm")
        self.createOrSet(stable_norm=flag("enableStableNorm", enabled))
        return self

    def showCompilationProgressBar(self, show: bool = True) -> Self:
        """Stores whether compilation shows a progress bar; eager models need none.

        Args:
            show: Whether it does.

        Returns:
            These options.
        """
        stored_only("showCompilationProgressBar")
        self.createOrSet(show_compilation_progress_bar=flag("showCompilationProgressBar", show))
        return self

    def relaxOptimizerAttributesChecks(self, relax: bool = True) -> Self:
        """Stores whether differences between an optimizer's groups go unreported.

        Args:
            relax: Whether they do.

        Returns:
            These options.
        """
        stored_only("relaxOptimizerAttributesChecks")
        self.createOrSet(relax_optimizer_checks=flag("relaxOptimizerAttributesChecks", relax))
        return self
