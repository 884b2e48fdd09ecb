"""Layers whose statistics are to be those of all replicas: checks that they can be.

`popdist_torch.horovod.batch_norm` has the layer for all devices. That of torch needs a process
group, and synchronises nothing without one; that of Horovod needs a GPU.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from popdist.backend import launch
from popdist_torch.errors import Error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from popdist_torch.options.placement import Placement


class OverAllProcesses:
    """A layer that exchanges its statistics in each call in training mode."""


def require_local(modules: Iterable[nn.Module]) -> None:
    """Checks that no layer is to synchronise statistics, where torch would not without a word.

    Raises:
        Error: There is a ``SyncBatchNorm``, and torch's own process group does not exist.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return
    for module in modules:
        if issubclass(type(module), nn.SyncBatchNorm) and module.training:
            raise Error(
                "PD315",
                "torch.nn.SyncBatchNorm synchronises nothing here, because torch.distributed is "
                "not initialised: each replica would normalise with its own statistics",
                value=module,
                accepted="torch.nn.BatchNorm*, whose statistics are each replica's own",
                hint="popdist_torch.SyncBatchNorm.convert_sync_batchnorm(model) in place of "
                "torch's normalizes over all processes",
            )


def require_whole_job(modules: Iterable[nn.Module], here: Placement) -> None:
    """Checks that layers can normalize over the replicas of a wrapped model.

    Raises:
        Error: Some layers exchange statistics, and the model is wrapped for one process of
            several; or layers of Horovod's are on a CPU.
    """
    for module in modules:
        if not module.training:
            continue
        if isinstance(module, OverAllProcesses):
            if here.num_processes == 1 and not launch().alone:
                raise Error(
                    "PD336",
                    "popdist_torch.SyncBatchNorm normalizes over all processes of the job, and the "
                    "model runs on one of them",
                    value=f"{here.num_processes} of {launch().size or 1} processes",
                    hint="leave out options.Distributed.disable()",
                )
        elif is_of_horovod(module) and all(p.device.type == "cpu" for p in module.parameters()):
            raise _on_a_cpu(module)


def is_of_horovod(layer: nn.Module) -> bool:
    """Whether a layer is Horovod's own ``SyncBatchNorm``."""
    kind = type(layer)
    return kind.__name__ == "SyncBatchNorm" and kind.__module__.startswith("horovod.torch")


def explain_that_of_horovod() -> None:
    """Makes calls of Horovod's own layer on a CPU say what to use there."""
    kind: Any = import_module("horovod.torch").SyncBatchNorm
    forward = kind.forward
    if getattr(forward, "__module__", None) == __name__:
        return

    @functools.wraps(forward)
    def explained(self: nn.Module, input: torch.Tensor) -> Any:  # noqa: A002 - torch's name
        if input.device.type == "cpu":
            raise _on_a_cpu(self)
        return forward(self, input)

    explained.__module__ = __name__
    kind.forward = explained


def _on_a_cpu(layer: nn.Module) -> Error:
    return Error(
        "PD315",
        "horovod.torch.SyncBatchNorm works on GPUs only",
        value=layer,
        hint="popdist_torch.SyncBatchNorm.convert_sync_batchnorm(model) replaces it",
    )
