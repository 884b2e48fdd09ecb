"""Reductions over the local replicas first, then over the instances.

So each value is sent over the host network once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf
from tensorflow.python.distribute import cross_device_ops, distribute_utils, values
from tensorflow.python.distribute import cross_device_utils as local

from popdist_tf.errors import StrategyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_tf.collectives.host import HostCollectives


class HostCrossDeviceOps(cross_device_ops.CrossDeviceOps):  # type: ignore[misc]
    """Cross-device operations of strategies whose workers communicate over the host network.

    Args:
        collectives: The job's collectives.
    """

    def __init__(self, collectives: HostCollectives) -> None:
        super().__init__()
        self._collectives = collectives

    @property
    def _num_between_graph_workers(self) -> int:
        # With 1, the base class returns a single local value unreduced, without any communication.
        return self._collectives.size

    def reduce_over_instances(self, reduce_op: Any, value: Any, local_count: int = 1) -> Any:
        """Reduces one value of this instance with those of the others.

        ``value`` is already the sum of ``local_count`` replicas; MEAN divides by the replicas of
        all instances. A MEAN of integers is a float64.

        Raises:
            StrategyError: The reduction is neither SUM nor MEAN.
        """
        check_reduction(reduce_op)
        total = (
            self._reduce_slices(value)
            if isinstance(value, tf.IndexedSlices)
            else self._collectives.allreduce(value)
        )
        if reduce_op == tf.distribute.ReduceOp.MEAN:
            count = local_count * self._collectives.size
            total = local.divide_by_n_tensors_or_indexed_slices(total, count)
        return total

    def reduce_implementation(
        self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any
    ) -> Any:
        """Reduces one value of every replica; called by TensorFlow."""
        del options
        check_reduction(reduce_op)
        held = per_replica_value.values
        with tf.device("CPU:0"):
            summed = local.aggregate_tensors_or_indexed_slices(held, tf.add_n)
        reduced = self.reduce_over_instances(reduce_op, summed, len(held))
        return self.broadcast(reduced, destinations)

    def batch_reduce_implementation(
        self, reduce_op: Any, value_destination_pairs: Sequence[tuple[Any, Any]], options: Any
    ) -> list[Any]:
        """Reduces many values; each is sent as soon as it exists. Called by TensorFlow."""
        return [
            self.reduce_implementation(reduce_op, value, destinations, options)
            for value, destinations in value_destination_pairs
        ]

    def _gather_implementation(
        self, per_replica_value: Any, destinations: Any, axis: int, options: Any
    ) -> Any:
        del options
        with tf.device("CPU:0"):
            own = tf.concat(per_replica_value.values, axis)
        return self.broadcast(self.gather_over_instances(own, axis), destinations)

    def from_first_instance(self, value: Any) -> Any:
        """The first instance's value, on every instance; rows of slices may differ in number."""
        if not isinstance(value, tf.IndexedSlices):
            return self._collectives.broadcast(value)
        if self._collectives.rank:
            value = tf.IndexedSlices(value.values[:0], value.indices[:0], value.dense_shape)
        return self._reduce_slices(value)

    def gather_over_instances(self, value: Any, axis: int) -> Any:
        """Concatenates the instances' values along an axis, in rank order.

        Raises:
            StrategyError: A scalar, which has no axis to gather along.
        """
        rank = value.shape.rank
        if not rank:
            raise StrategyError(
                "PD412",
                "scalars cannot be gathered: they have no axis to be concatenated along",
                value=value.shape,
                accepted="values with at least one dimension",
                hint="tf.expand_dims(value, 0) first",
            )
        # Horovod concatenates along the first dimension.
        order = [axis % rank, *(i for i in range(rank) if i != axis % rank)]
        back = [order.index(i) for i in range(rank)]
        return tf.transpose(self._collectives.allgather(tf.transpose(value, order)), back)

    def _reduce_slices(self, value: Any) -> Any:
        return tf.IndexedSlices(
            values=self._collectives.allgather(value.values),
            indices=self._collectives.allgather(value.indices),
            dense_shape=value.dense_shape,
        )


def check_reduction(reduce_op: Any) -> None:
    """Refuses reductions other than SUM and MEAN.

    Raises:
        StrategyError: It is another reduction.
    """
    if reduce_op not in (tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN):
        raise StrategyError(
            "PD412",
            "this reduction over replicas is not supported",
            value=reduce_op,
            accepted="tf.distribute.ReduceOp.SUM or tf.distribute.ReduceOp.MEAN",
        )


def is_per_replica(value: Any) -> bool:
    """Whether a value holds one value for each local replica, as `tf.distribute` sees it."""
    return isinstance(value, values.DistributedValues)


def is_mirrored(value: Any) -> bool:
    """Whether a value is known to be the same on every replica."""
    return bool(distribute_utils.is_mirrored(value))
