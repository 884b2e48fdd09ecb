"""Horovod-style training with Keras: the same names as ``horovod.tensorflow.keras``.

For programs of six steps: `init`, a local batch size from `size`, devices by `local_rank`, data by
`rank`, `callbacks.BroadcastGlobalVariablesCallback` and `DistributedOptimizer`. It works with Keras
2 and with Keras 3, where Horovod's own wrapper no longer reduces gradients.
"""

from typing import TYPE_CHECKING, Any

from popdist_tf.collectives import instances
from popdist_tf.global_mean import global_mean
from popdist_tf.keras import callbacks
from popdist_tf.keras.callbacks import broadcast_variables, check_weights
from popdist_tf.keras.job import (
    allgather,
    allreduce,
    broadcast,
    init,
    local_rank,
    local_size,
    rank,
    size,
)
from popdist_tf.keras.optimizer import DistributedOptimizer
from popdist_tf.together.saving import synchronize_state

if TYPE_CHECKING:
    from popdist_tf.collectives.instances import Average, Sum, shutdown

__all__ = [
    "Average",
    "DistributedOptimizer",
    "Sum",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_variables",
    "callbacks",
    "check_weights",
    "global_mean",
    "init",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
    "synchronize_state",
]

_OF_HOROVOD = frozenset({"Average", "Sum", "shutdown"})


def __getattr__(name: str) -> Any:
    """Horovod's own names; other modules of this package need no Horovod."""
    if name in _OF_HOROVOD:
        return getattr(instances, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
