"""Runs a function on the only replica of an instance.

TensorFlow's mirrored strategies run each replica in a thread of its own. The threads meet wherever
replicas reduce, and cannot meet inside of a loop, a branch or a function that one of them builds.
An instance with one replica has nothing to meet: the function runs in the caller's thread, as in
the original, and may reduce anywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf
from tensorflow.python.distribute import distribute_lib, distribute_utils

if TYPE_CHECKING:
    from collections.abc import Callable


class OnlyReplicaContext(distribute_lib.ReplicaContext):  # type: ignore[misc]
    """The context of the only replica of an instance."""

    def _merge_call(self, merge_fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        with tf.device(None):
            result = super()._merge_call(merge_fn, args, kwargs)
        return distribute_utils.select_replica(0, result)

    @property
    def devices(self) -> list[str]:
        """The replica's device."""
        return list(self._strategy.extended.worker_devices)


def call_only_replica(extended: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What a function returns on the only replica, as `strategy.run` returns it.

    Args:
        extended: The extended class of a strategy with one local replica.
        fn: The function.
        args: Its arguments; of distributed values, it gets the replica's.
        kwargs: Its keyword arguments, likewise.
    """
    strategy = extended._container_strategy()
    number = extended._get_replica_id_in_sync_group(0)
    with OnlyReplicaContext(strategy, number), tf.device(extended.worker_devices[0]):
        result = fn(
            *distribute_utils.select_replica(0, args or ()),
            **distribute_utils.select_replica(0, kwargs or {}),
        )
    return distribute_utils.regroup((result,))


def destinations_in(extended: Any, destinations: Any) -> Any:
    """Where a reduced value goes: to the replica's device, if the destination names no device.

    Tensors of a function that is built inside of a replica's function have no device yet, and
    TensorFlow's reductions look for one.
    """
    one = destinations.values if isinstance(destinations, tf.IndexedSlices) else destinations
    device = one.device if isinstance(one, tf.Tensor) else one
    return extended.worker_devices[0] if isinstance(device, str) and not device else destinations
