"""An executor's own copy of a module on its device, and copies between the two."""

from __future__ import annotations

import copy
import logging
from typing import TYPE_CHECKING

import torch

from popdist.popdist_core import getDeviceId
from popdist_torch.errors import Error
from popdist_torch.executor.replicas import ReplicaBuffers
from popdist_torch.options import ConnectionType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from popdist_torch.options import Options


class DeviceModel:
    """The copy that runs.

    Tied weights stay tied. The copy keeps the training flags that the program's module had when it
    was wrapped, whatever the program does to its own module later.

    Args:
        host: The program's module.
        training_flags: One flag per module, in the order of ``host.modules()``.
        device: Where the copy lives.
        replicas: Local replicas, each of which has buffers of its own.

    Attributes:
        module: The copy.
        buffers: The buffers of every replica.
        names: The parameters' names.
        pairs: Every parameter of the program's module with its copy, in the order of ``names``.
    """

    def __init__(
        self,
        host: nn.Module,
        training_flags: Sequence[bool],
        device: torch.device,
        replicas: int,
    ) -> None:
        self._host = host
        self.module = copy.deepcopy(host).to(device)
        for part, training in zip(self.module.modules(), training_flags, strict=True):
            part.training = training
        self.names = [name for name, _ in host.named_parameters()]
        self.pairs = list(zip(host.parameters(), self.module.parameters(), strict=True))
        self._parts = list(zip(host.modules(), self.module.modules(), strict=True))
        self.buffers = ReplicaBuffers(self.module, replicas)

    def to_host(self) -> None:
        """Copies parameters, and the first replica's buffers, into the program's module."""
        self.buffers.use(0)
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
            for host, device in self.pairs:
                host.copy_(device)
            for host_part, device_part in self._parts:
                for name, value in device_part._buffers.items():  # noqa: SLF001
                    _copy_buffer(value, host_part._buffers, name)  # noqa: SLF001

    def from_host(self) -> None:
        """Copies the program's parameters and buffers into the copy, buffers for every replica."""
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
            for host, device in self.pairs:
                device.copy_(host)
            for replica in range(self.buffers.replicas):
                self.buffers.use(replica)
                for host_part, device_part in self._parts:
                    for name, value in host_part._buffers.items():  # noqa: SLF001
                        _copy_buffer(value, device_part._buffers, name)  # noqa: SLF001

    def buffers_from_host(self, names: Sequence[str]) -> None:
        """Copies some of the program's buffers into the copy, for every replica.

        Args:
            names: Their names in the module.

        Raises:
            Error: The module has no such buffer.
        """
        found = {
            f"{path}.{name}".lstrip("."): (host, device, name)
            for (path, host), (_, device) in zip(
                self._host.named_modules(), self.module.named_modules(), strict=True
            )
            for name in host._buffers  # noqa: SLF001
        }
        if unknown := [name for name in names if name not in found]:
            raise Error(
                "PD305",
                "the model has no such buffer",
                value=", ".join(unknown),
                accepted=", ".join(found) or "none: the model has no buffers",
                hint="options.updatableNamedBuffers takes names of model.named_buffers()",
            )
        with torch.no_grad():
            for replica in range(self.buffers.replicas):
                self.buffers.use(replica)
                for host, device, name in (found[name] for name in names):
                    _copy_buffer(host._buffers[name], device._buffers, name)  # noqa: SLF001

    def storages(self) -> frozenset[int]:
        """Addresses of the memory that steps change in place.

        Returns:
            One address per parameter and buffer.
        """
        tensors = [*self.module.parameters(), *self.buffers.tensors()]
        return frozenset(tensor.untyped_storage().data_ptr() for tensor in tensors)


def _copy_buffer(
    source: torch.Tensor | None, target: dict[str, torch.Tensor | None], name: str
) -> None:
    present = target.get(name)
    if source is None or present is None or present.shape != source.shape:
        target[name] = None if source is None else source.detach().clone()
    else:
        present.copy_(source)


# Where a wrapped model runs.


logger = logging.getLogger("popdist.torch")


def choose(options: Options) -> torch.device:
    """Chooses the device of a model.

    All local replicas of an instance share its first device and run there one after the other.

    Args:
        options: The model's options.

    Returns:
        The GPU that ``useIpuId`` or the launcher gives this instance, where the machine has GPUs
        and the job is neither offline nor on the "IPU model"; otherwise the CPU.
    """
    simulated = options.exists("use_model") and options.use_model
    offline = options.connection_type == ConnectionType.Never
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count or simulated or offline:
        return torch.device("cpu")
    wanted = options.ipu_id if options.exists("ipu_id") else getDeviceId()
    if wanted >= count:
        logger.info("device %d does not exist; sharing device %d", wanted, wanted % count)
    return torch.device("cuda", wanted % count)
