"""``Options``: what a PopTorch program sets before it builds loaders and models."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.errors import OptionError
from popdist_torch.options.checks import flag, member, whole_number
from popdist_torch.options.device_only import DeviceOnlyOptions
from popdist_torch.options.distributed import DistributedOptions
from popdist_torch.options.enums import ConnectionType, OutputMode, SyncPattern
from popdist_torch.options.jit import JitOptions
from popdist_torch.options.locations import TensorLocationsOptions
from popdist_torch.options.placement import Placement
from popdist_torch.options.popart import PopartOptions
from popdist_torch.options.precision import PrecisionOptions
from popdist_torch.options.training import TrainingOptions

if TYPE_CHECKING:
    from typing_extensions import Self

    from popdist_torch.options.storage import OptionsDict

_GROUPS = ("Training", "Precision", "Distributed", "TensorLocations", "Jit", "_Popart")


class Options(DeviceOnlyOptions):
    """Options of a model and of the loaders that feed it.

    Every method returns the options, so that calls chain. Once a `popdist_torch.DataLoader` or a
    wrapped model has taken them they are frozen; `clone` gives a copy that can be changed.

    Methods that act on a host are here; those that only an IPU obeys are kept by the base class.
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
        )

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

    def deviceIterations(self, device_iterations: int) -> Self:
        """Sets how many times one call runs the model on fresh data.

        Args:
            device_iterations: Weight updates per call in training, model runs in inference.

        Returns:
            These options.
        """
        value = whole_number("deviceIterations", device_iterations, least=1)
        self.set(device_iterations=value)
        return self

    def replicationFactor(self, replication_factor: int) -> Self:
        """Sets how many replicas of the model this process runs.

        Args:
            replication_factor: Replicas of this process.

        Returns:
            These options.
        """
        value = whole_number("replicationFactor", replication_factor, least=1)
        self.set(replication_factor=value)
        return self

    def outputMode(self, output_mode: OutputMode, output_return_period: int | None = None) -> Self:
        """Sets which outputs of a call come back.

        Args:
            output_mode: ``Final``, ``EveryN``, ``All``, ``Sum`` or ``Default`` (``Final`` for
                training, ``All`` for inference).
            output_return_period: N of ``EveryN``, in device iterations.

        Returns:
            These options.

        Raises:
            OptionError: ``EveryN`` without a positive period.
        """
        self.set(output_mode=member("outputMode", output_mode, OutputMode))
        if output_mode == OutputMode.EveryN:
            period = whole_number("the period of EveryN", output_return_period, least=1)
            self.set(output_return_period=period)
        return self

    def anchorMode(self, anchor_mode: OutputMode, anchor_return_period: int | None = None) -> Self:
        """The name of `outputMode` up to SDK 2.4.

        Args:
            anchor_mode: As for `outputMode`.
            anchor_return_period: As for `outputMode`.

        Returns:
            These options.
        """
        return self.outputMode(anchor_mode, anchor_return_period)

    def defaultOutputMode(self) -> bool:
        """Whether the output mode is still ``Default``.

        Returns:
            True if so.
        """
        return bool(self("output_mode") == OutputMode.Default)

    def randomSeed(self, random_seed: int) -> Self:
        """Seeds the host's generator, shuffling, and every replica's own random stream.

        Called before the model is built, it also gives all instances the same first weights.

        Args:
            random_seed: The seed.

        Returns:
            These options.

        Raises:
            OptionError: Not a whole number.
        """
        value = whole_number("randomSeed", random_seed, least=0)
        torch.manual_seed(value)
        self.createOrSet(random_seed=value)
        return self

    def connectionType(self, connection_type: ConnectionType) -> Self:
        """Sets when devices are attached to.

        Args:
            connection_type: ``Never`` makes running a model an error; the others run it.

        Returns:
            These options.
        """
        self.set(connection_type=member("connectionType", connection_type, ConnectionType))
        return self

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> Self:
        """Makes the job one that never runs a model.

        Args:
            ipu_version: Stored.

        Returns:
            These options.
        """
        self.createOrSet(ipu_version=whole_number("useOfflineIpuTarget", ipu_version, least=1))
        return self.connectionType(ConnectionType.Never)

    def useIpuModel(self, use_model: bool) -> Self:
        """Runs models on the CPU even where the machine has a GPU.

        Args:
            use_model: Whether to.

        Returns:
            These options.
        """
        self.createOrSet(use_model=flag("useIpuModel", use_model))
        return self

    def useIpuId(self, ipu_id: int) -> Self:
        """Sets which device models run on.

        Args:
            ipu_id: Index of the device on this host.

        Returns:
            These options.
        """
        self.createOrSet(ipu_id=whole_number("useIpuId", ipu_id, least=0))
        return self

    def broadcastBuffers(self, broadcast_buffers: bool = True) -> Self:
        """Sets whether buffers that the model changes must be the same in all replicas.

        Args:
            broadcast_buffers: False lets every replica keep its own. Running statistics of
                normalisation layers are each replica's own either way.

        Returns:
            These options.
        """
        self.set(broadcast_buffers=flag("broadcastBuffers", broadcast_buffers))
        return self

    def clone(self) -> Self:
        """A copy that can be changed.

        Returns:
            The copy, never frozen.
        """
        return copy.deepcopy(self)

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
            merged = type(group).update(group, merged)
        return {key: getattr(value, "value", value) for key, value in merged.items()}

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

    def __repr__(self) -> str:
        lines = [super().__repr__()[:-1]]
        for name in _GROUPS:
            indented = repr(getattr(self, name)).replace("\n", "\n    ")
            lines.append(f"    {name}: {indented}")
        return "\n".join(lines) + ")"

    def _groups(self) -> list[OptionsDict]:
        return [getattr(self, name) for name in _GROUPS]

    def _freeze(self) -> None:
        super()._freeze()
        for group in self._groups():
            group._freeze()  # noqa: SLF001 - groups freeze with the whole

    def _unfreeze(self) -> None:
        super()._unfreeze()
        for group in self._groups():
            group._unfreeze()  # noqa: SLF001
