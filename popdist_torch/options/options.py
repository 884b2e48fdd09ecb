"""``Options``: what a PopTorch program sets before it builds loaders and models."""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING, Any

from popdist_torch.errors import OptionError
from popdist_torch.options import config
from popdist_torch.options.device_only import DeviceOnlyOptions
from popdist_torch.options.distributed import DistributedOptions
from popdist_torch.options.enums import CommGroupType, ConnectionType, OutputMode, SyncPattern
from popdist_torch.options.host import HostOptions
from popdist_torch.options.jit import JitOptions
from popdist_torch.options.locations import TensorLocationsOptions
from popdist_torch.options.placement import Placement
from popdist_torch.options.popart import PopartOptions
from popdist_torch.options.precision import PrecisionOptions
from popdist_torch.options.strategies import PipelinedExecution
from popdist_torch.options.training import TrainingOptions

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

    from popdist_torch.options.storage import OptionsDict


class Options(HostOptions, DeviceOnlyOptions):
    """Options of a model and of the loaders that feed it.

    Every method returns the options, so that calls chain. Once a `popdist_torch.DataLoader` or a
    wrapped model has taken them they are frozen; `clone` gives a copy that can be changed.

    Methods that act on a host are in one base class, those that only an IPU obeys in the other. The
    published environment variables apply to every fresh object: ``POPTORCH_DEFAULT_OPTIONS``
    (as for `from_json`) and ``POPTORCH_CACHE_DIR`` (as for `enableExecutableCaching`).
    """

    def __init__(self) -> None:
        self._training = TrainingOptions()
        self._precision = PrecisionOptions()
        self._distributed = DistributedOptions()
        self._locations = TensorLocationsOptions()
        self._jit = JitOptions()
        self._Popart = PopartOptions()
        # Facts that loaders leave for the first-step check of the model they feed.
        self._data_facts: list[str] = []
        super().__init__(
            replication_factor=1,
            input_group_size=1,
            input_cgt=CommGroupType.Consecutive,
            broadcast_buffers=True,
            device_iterations=1,
            log_dir=".",
            max_repeat_logs=4,
            auto_round_num_ipus=False,
            anchored_tensors={},
            output_mode=OutputMode.Default,
            output_return_period=1,
            connection_type=ConnectionType.Always,
            sync_pattern=SyncPattern.Full,
            available_memory_proportion={},
            execution_strategy=PipelinedExecution(),
        )
        if folder := os.environ.get("POPTORCH_CACHE_DIR"):
            self.enableExecutableCaching(folder)
        if defaults := os.environ.get("POPTORCH_DEFAULT_OPTIONS"):
            self.from_json(defaults)

    @property
    def Training(self) -> TrainingOptions:
        """Options that only training reads."""
        return self._training

    @property
    def Precision(self) -> PrecisionOptions:
        """Options of the device's arithmetic."""
        return self._precision

    @property
    def Distributed(self) -> DistributedOptions:
        """The place of this process among those that train one model."""
        return self._distributed

    @property
    def TensorLocations(self) -> TensorLocationsOptions:
        """Where an IPU keeps tensors."""
        return self._locations

    @property
    def Jit(self) -> JitOptions:
        """How PopTorch builds its graph."""
        return self._jit

    def clone(self) -> Self:
        """A copy that can be changed.

        Returns:
            The copy, never frozen.
        """
        return copy.deepcopy(self)

    def loadFromFile(self, filepath: str | Path) -> Self:
        """Makes the calls that a file lists, one a line, without the name of the options.

        The file is parsed, never executed; see `popdist_torch.options.config`.

        Args:
            filepath: The file; ``#`` starts a comment.

        Returns:
            These options.

        Raises:
            ConfigFileError: A line is no call that options accept; names line and file.
        """
        config.load(self, filepath)
        return self

    def from_json(self, string: str) -> Self:
        """Makes the calls that a JSON object lists.

        Args:
            string: Such as ``{"deviceIterations": 4, "outputMode": "OutputMode.All"}``; a list
                stands for several arguments.

        Returns:
            These options.

        Raises:
            OptionError: It is no such object, or names no method of options.
        """
        config.load_json(self, string)
        return self

    def toDict(self) -> dict[str, Any]:
        """All options and those of the groups as plain data.

        Returns:
            Keys with values.

        Raises:
            OptionError: The output mode is still ``Default``, which only a model resolves.
        """
        if self.defaultOutputMode():
            raise OptionError(
                "PD300",
                "toDict needs a resolved output mode",
                value=OutputMode.Default,
                hint="call outputMode(...) first",
            )
        merged = super().toDict()
        for group in self._groups():
            for key, value in group.toDict().items():
                merged[key] = value
        return merged

    @property
    def placement(self) -> Placement:
        """Which replicas of the job this process runs.

        Processes of a plain job all have this process's number of replicas; only the launcher knows
        of jobs where they differ.
        """
        here, local = self.Distributed, int(self("replication_factor"))
        return Placement(
            first_replica=here.processId * local,
            local_replicas=local,
            total_replicas=here.numProcesses * local,
            process_id=here.processId,
            num_processes=here.numProcesses,
        )

    def resolved(self, default: OutputMode) -> Self:
        """A copy for a model's own use, with the output mode settled and everything frozen.

        Args:
            default: What ``Default`` means to the model.

        Returns:
            The frozen copy.
        """
        own = self.clone()
        if own.defaultOutputMode():
            own.set(output_mode=default)
        own._data_facts = self._data_facts  # noqa: SLF001 - loaders built later add to it too
        own._freeze()  # noqa: SLF001
        return own

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        clone = super().__deepcopy__(memo)
        clone.__dict__["_data_facts"] = []
        return clone

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Options):
            return NotImplemented
        return super().__eq__(other) and self._groups() == other._groups()

    __hash__ = None  # type: ignore[assignment]  # equal options can be changed to differ

    def __repr__(self) -> str:
        lines = [super().__repr__()[:-1]]
        for name in config.GROUPS:
            indented = repr(getattr(self, name)).replace("\n", "\n    ")
            lines.append(f"    {name}: {indented}")
        return "\n".join(lines) + ")"

    def _groups(self) -> list[OptionsDict]:
        return [getattr(self, name) for name in config.GROUPS]

    def _freeze(self) -> None:
        super()._freeze()
        for group in self._groups():
            group._freeze()  # noqa: SLF001 - groups freeze with the whole

    def _unfreeze(self) -> None:
        super()._unfreeze()
        for group in self._groups():
            group._unfreeze()  # noqa: SLF001
