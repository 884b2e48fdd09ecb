"""For plain training loops: Horovod's six steps, with one import changed.

    import popdist_torch.horovod as hvd

`world` starts Horovod, gives the place of this process, and divides batches and data sets;
`optimizer` sums gradients while backward passes run; `sharing` gives all ranks the same first
state, and averages metrics; `collectives` gives Horovod's functions the gradients that they need
inside a loss; `SyncBatchNorm` normalizes over the rows of all processes. Every other name is that
of the real ``horovod.torch``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from popdist_torch.global_means import global_mean
from popdist_torch.horovod import collectives, world
from popdist_torch.horovod.batch_norm import SyncBatchNorm
from popdist_torch.horovod.optimizer import Distributed, DistributedOptimizer
from popdist_torch.horovod.sharing import (
    average_metrics,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from popdist_torch.horovod.world import (
    DistributedSampler,
    local_batch_size,
    local_rank,
    local_size,
    pin_device,
    rank,
    size,
)
from popdist_torch.unexchanged import watch

__all__ = [
    "Distributed",
    "DistributedOptimizer",
    "DistributedSampler",
    "SyncBatchNorm",
    "average_metrics",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "global_mean",
    "init",
    "local_batch_size",
    "local_rank",
    "local_size",
    "pin_device",
    "rank",
    "size",
]


def init() -> None:
    """Starts the real Horovod; safe to call again.

    The job may have been started by poprun, mpirun, horovodrun or srun. In a process without a
    launcher, Horovod is not started, as its MPI need not be able to; it is rank 0 of 1, and only
    those of Horovod's own functions are available that need no other process. In a job of several
    processes, the first one warns of each optimizer that exchanges no gradients (PD327), and of
    updates by hand (PD333).

    Raises:
        BackendError: No usable Horovod is installed, or it sees another job than poprun started.
    """
    world.init()
    if size() > 1:
        watch(rank())


def __getattr__(name: str) -> Any:
    """Everything else, such as ``allreduce``, is Horovod's own."""
    if name.startswith("__"):
        raise AttributeError(name)
    if name in collectives.NAMES:
        return collectives.differentiable(name)
    return getattr(import_module("horovod.torch"), name)
