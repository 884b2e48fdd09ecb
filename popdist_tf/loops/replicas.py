"""Published operations among the replicas of a job, in device code."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v2 as tf

from popdist_tf.errors import StrategyError
from popdist_tf.loops.scopes import reduce_rows, reduction_name
from popdist_tf.strategies.devices import warn_of_missing_replicas
from popdist_tf.strategies.extended import on_device
from popdist_tf.strategies.popdist_strategy import PopDistStrategy


def replication_index(name: str | None = None) -> Any:
    """The index of this replica among all replicas of the job.

    Args:
        name: Of the operation.

    Returns:
        An int32 scalar; 0 outside of strategies.

    Raises:
        RuntimeError: The code is not a replica's, as between `strategy.scope` and `strategy.run`.
    """
    replica = tf.distribute.get_replica_context()
    if replica is None:
        raise RuntimeError("replication_index works in a replica: call it inside strategy.run")
    index = replica.replica_id_in_sync_group
    return tf.identity(tf.convert_to_tensor(index, dtype=tf.int32), name=name)


def cross_replica_sum(x: Any, replica_group_size: Any = None, name: str | None = None) -> Any:
    """Sums a tensor over replicas.

    Under `PopDistStrategy` these are all replicas of the job. Other strategies run one replica in
    each process, and the original reduces over a process alone here, so there it is the tensor
    itself; `strategy.reduce` and the optimizers reduce over processes.

    Args:
        x: A tensor.
        replica_group_size: How many consecutive replicas form a group, each with a sum of its own;
            None for all replicas. In SDK 2.2 and before, the second argument was the name.
        name: Accepted as published.

    Returns:
        The sum, the same on every replica of a group.

    Raises:
        StrategyError: The groups do not divide the replicas.
    """
    del name
    return _reduced(tf.distribute.ReduceOp.SUM, x, replica_group_size)


def cross_replica_mean(x: Any, replica_group_size: Any = None, name: str | None = None) -> Any:
    """Averages a tensor over replicas; see `cross_replica_sum` for which.

    Args:
        x: A tensor.
        replica_group_size: As for `cross_replica_sum`.
        name: Accepted as published.

    Returns:
        The mean, the same on every replica of a group.

    Raises:
        StrategyError: The groups do not divide the replicas.
    """
    del name
    return _reduced(tf.distribute.ReduceOp.MEAN, x, replica_group_size)


def all_gather(x: Any, replication_factor: int, name: str | None = None) -> Any:
    """The tensors of all replicas, on every replica; see `cross_replica_sum` for which.

    Args:
        x: A tensor, of the same shape on every replica, or a list of them.
        replication_factor: How many replicas there are.
        name: Of the operation.

    Returns:
        Shape ``(replication_factor, *x.shape)``, or a list of such tensors.

    Raises:
        StrategyError: The job has another number of replicas.
    """
    if isinstance(x, (list, tuple)):
        return [all_gather(one, replication_factor, name) for one in x]
    replica, count = _replica(replication_factor, "all_gather")
    row = tf.convert_to_tensor(x)[tf.newaxis]
    if count == 1:
        return tf.identity(row, name=name)
    gathered = replica.merge_call(
        lambda strategy, value: strategy.extended.gather_over_replicas(value), args=(row,)
    )
    return tf.ensure_shape(gathered, [count, *row.shape[1:]], name=name)


def all_to_all(
    x: Any,
    split_dimension: int,
    concat_dimension: int,
    replication_factor: int,
    name: str | None = None,
) -> Any:
    """Sends one part of a tensor to each replica, and joins the parts that were received.

    Args:
        x: A tensor, of the same shape on every replica.
        split_dimension: Along which it is divided, into as many parts as there are replicas.
        concat_dimension: Along which the received parts are joined, in the order of replicas.
        replication_factor: How many replicas there are.
        name: Of the operation.

    Returns:
        The joined parts.

    Raises:
        StrategyError: The job has another number of replicas, or the dimension cannot be divided.
    """
    x = tf.convert_to_tensor(x)
    if x.shape[split_dimension] is None or x.shape[split_dimension] % replication_factor:
        raise StrategyError(
            "PD433",
            "all_to_all cannot divide this dimension over the replicas",
            value=f"dimension {split_dimension} of shape {x.shape}",
            accepted=f"a size that is a multiple of {replication_factor}",
        )
    gathered = all_gather(x, replication_factor)
    size = x.shape[split_dimension] // replication_factor
    places = tf.range(size) + replication_index() * size
    own = tf.gather(gathered, places, axis=split_dimension % x.shape.rank + 1)
    return tf.concat(tf.unstack(own), axis=concat_dimension, name=name or "concat")


def reduce_scatter(
    x: Any, replication_factor: int, op: Any = "COLLECTIVE_OP_ADD", name: str | None = None
) -> Any:
    """Reduces a tensor over replicas, and gives each replica a part of the result.

    Args:
        x: A tensor, of the same shape on every replica, or a list of them.
        replication_factor: How many replicas there are.
        op: "COLLECTIVE_OP_ADD", or likewise with MAX, MEAN, MIN or MUL.
        name: Of the operation.

    Returns:
        One dimension: the replica's part of the flattened result, which is filled up with zeros to
        a multiple of ``replication_factor``. A list of such tensors for a list.

    Raises:
        StrategyError: The job has another number of replicas.
        LayerError: The reduction does not exist.
    """
    if isinstance(x, (list, tuple)):
        return [reduce_scatter(one, replication_factor, op, name) for one in x]
    _replica(replication_factor, "reduce_scatter")
    if reduction_name(op) == "ADD":
        total = tf.reshape(cross_replica_sum(x), [-1])
    else:
        rows = tf.unstack(all_gather(x, replication_factor))
        total = tf.reshape(reduce_rows(rows, op), [-1])
    size = -(-total.shape[0] // replication_factor)
    padded = tf.pad(total, [[0, size * replication_factor - total.shape[0]]])
    return tf.slice(padded, [replication_index() * size], [size], name=name)


def _replica(expected: int, operation: str) -> tuple[Any, int]:
    """The replica's context, and how many replicas it exchanges with."""
    replica = tf.distribute.get_replica_context()
    if replica is None:
        raise RuntimeError(f"{operation} works in a replica: call it inside strategy.run")
    count = replica_count()
    if expected != count:
        raise StrategyError(
            "PD433",
            f"{operation} was called for another number of replicas than there are",
            value=expected,
            accepted=str(count),
            hint="popdist.getNumTotalReplicas()",
        )
    return replica, count


def replica_count() -> int:
    """How many replicas `cross_replica_sum` adds up here.

    Returns:
        All replicas of the job under `PopDistStrategy`, otherwise 1.
    """
    replica = tf.distribute.get_replica_context()
    is_job = replica is not None and isinstance(replica.strategy, PopDistStrategy)
    return int(replica.strategy.num_replicas_in_sync) if is_job else 1


def assume_equal_across_replicas(tensors: Any, inplace: bool = False) -> Any:
    """States that tensors are the same on every replica; without effect on a host.

    Args:
        tensors: Tensors.
        inplace: Accepted as published.

    Returns:
        The tensors.
    """
    del inplace
    return tensors


def _reduced(reduce_op: Any, x: Any, group_size: Any) -> Any:
    replica = tf.distribute.get_replica_context()
    if replica is None:
        extended = tf.distribute.get_strategy().extended
        if on_device() and getattr(extended, "replicas_per_step", 0) == 1:
            # An optimizer that sums after `merge_call`: the value is that of the only replica.
            return extended.reduce_over_replicas(reduce_op, x)
        raise RuntimeError("cross_replica_ops work in a replica: call them inside strategy.run")
    if not isinstance(replica.strategy, PopDistStrategy):
        warn_of_missing_replicas()
        return tf.identity(x)
    if isinstance(group_size, int) and group_size != replica.strategy.num_replicas_in_sync:
        return _reduced_in_group(reduce_op, x, replica.strategy.num_replicas_in_sync, group_size)
    # Not `all_reduce`: a graph of TensorFlow 1 with several local replicas does not support it.
    return replica.merge_call(
        lambda strategy, value: strategy.extended.reduce_over_replicas(reduce_op, value), args=(x,)
    )


def _reduced_in_group(reduce_op: Any, x: Any, count: int, size: int) -> Any:
    if size < 1 or count % size:
        raise StrategyError(
            "PD433",
            "replicas cannot be divided into groups of this size",
            value=size,
            accepted=f"a divisor of {count}",
        )
    rows = all_gather(x, count)
    own = tf.slice(
        tf.reshape(rows, [count, -1]), [replication_index() // size * size, 0], [size, -1]
    )
    is_sum = reduce_op == tf.distribute.ReduceOp.SUM
    result = tf.reduce_sum(own, axis=0) if is_sum else tf.reduce_mean(own, axis=0)
    return tf.reshape(result, tf.shape(x))
