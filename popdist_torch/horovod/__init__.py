"""For plain training loops: Horovod's six steps, with one import changed.

    import popdist_torch.horovod as hvd

`world` starts Horovod, gives the place of this process, and divides batches and data sets;
`optimizer` sums gradients while backward passes run; `sharing` gives all ranks the same first
state, and averages metrics. Every other name is that of the real ``horovod.torch``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from popdist_torch.horovod.optimizer import Distributed, DistributedOptimizer
from popdist_torch.horovod.sharing import (
    average_metrics,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from popdist_torch.horovod.world import (
    DistributedSampler,
    init,
    local_batch_size,
    local_rank,
    local_size,
    pin_device,
    rank,
    size,
)

__all__ = [
    "Distributed",
    "DistributedOptimizer",
    "DistributedSampler",
    "average_metrics",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "init",
    "local_batch_size",
    "local_rank",
    "local_size",
    "pin_device",
    "rank",
    "size",
]


def __getattr__(name: str) -> Any:
    """Everything else, such as ``allreduce``, is Horovod's own."""
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(import_module("horovod.torch"), name)
