"""Published operations among the replicas of a job, in device code."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from popdist_tf.errors import StrategyError
from popdist_tf.strategies.devices import warn_of_missing_replicas
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


def cross_replica_sum(x: Any, name: str | None = None) -> Any:
    """Sums a tensor over replicas.

    Under `PopDistStrategy` these are all replicas of the job. Other strategies run one replica in
    each process, and the original reduces over a process alone here, so there it is the tensor
    itself; `strategy.reduce` and the optimizers reduce over processes.

    Args:
        x: A tensor.
        name: Accepted as published.

    Returns:
        The sum, the same on every replica.
    """
    del name
    return _reduced(tf.distribute.ReduceOp.SUM, x)


def cross_replica_mean(x: Any, name: str | None = None) -> Any:
    """Averages a tensor over replicas; see `cross_replica_sum` for which.

    Args:
        x: A tensor.
        name: Accepted as published.

    Returns:
        The mean, the same on every replica.
    """
    del name
    return _reduced(tf.distribute.ReduceOp.MEAN, x)


def all_gather(x: Any, replication_factor: int, name: str | None = None) -> Any:
    """The tensors of all replicas, on every replica; see `cross_replica_sum` for which.

    Args:
        x: A tensor, of the same shape on every replica.
        replication_factor: How many replicas there are.
        name: Of the operation.

    Returns:
        Shape ``(replication_factor, *x.shape)``.

    Raises:
        StrategyError: The job has another number of replicas.
    """
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
    number_of_replicas: int,
    name: str | None = None,
) -> Any:
    """Sends one part of a tensor to each replica, and joins the parts that were received.

    Args:
        x: A tensor, of the same shape on every replica.
        split_dimension: Along which it is divided, into as many parts as there are replicas.
        concat_dimension: Along which the received parts are joined, in the order of replicas.
        number_of_replicas: How many replicas there are.
        name: Of the operation.

    Returns:
        The joined parts.

    Raises:
        StrategyError: The job has another number of replicas, or the dimension cannot be divided.
    """
    x = tf.convert_to_tensor(x)
    if x.shape[split_dimension] is None or x.shape[split_dimension] % number_of_replicas:
        raise StrategyError(
            "PD433",
            "all_to_all cannot divide this dimension over the replicas",
            value=f"dimension {split_dimension} of shape {x.shape}",
            accepted=f"a size that is a multiple of {number_of_replicas}",
        )
    gathered = all_gather(x, number_of_replicas)
    size = x.shape[split_dimension] // number_of_replicas
    places = tf.range(size) + replication_index() * size
    own = tf.gather(gathered, places, axis=split_dimension % x.shape.rank + 1)
    return tf.concat(tf.unstack(own), axis=concat_dimension, name=name or "concat")


def reduce_scatter(x: Any, replication_factor: int, name: str | None = None) -> Any:
    """Sums a tensor over replicas, and gives each replica a part of the sum.

    Args:
        x: A tensor, of the same shape on every replica.
        replication_factor: How many replicas there are.
        name: Of the operation.

    Returns:
        One dimension: the replica's part of the flattened sum, which is filled up with zeros to a
        multiple of ``replication_factor``.

    Raises:
        StrategyError: The job has another number of replicas.
    """
    _replica(replication_factor, "reduce_scatter")
    total = tf.reshape(cross_replica_sum(x), [-1])
    size = -(-total.shape[0] // replication_factor)
    padded = tf.pad(total, [[0, size * replication_factor - total.shape[0]]])
    return tf.slice(padded, [replication_index() * size], [size], name=name)


def _replica(expected: int, operation: str) -> tuple[Any, int]:
    """The replica's context, and how many replicas it exchanges with."""
    replica = tf.distribute.get_replica_context()
    if replica is None:
        raise RuntimeError(f"{operation} works in a replica: call it inside strategy.run")
    is_job = isinstance(replica.strategy, PopDistStrategy)
    count = replica.strategy.num_replicas_in_sync if is_job else 1
    if expected != count:
        raise StrategyError(
            "PD433",
            f"{operation} was called for another number of replicas than there are",
            value=expected,
            accepted=str(count),
            hint="popdist.getNumTotalReplicas()",
        )
    return replica, count


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


def _reduced(reduce_op: Any, x: Any) -> Any:
    replica = tf.distribute.get_replica_context()
    if replica is None:
        raise RuntimeError("cross_replica_ops work in a replica: call them inside strategy.run")
    if not isinstance(replica.strategy, PopDistStrategy):
        warn_of_missing_replicas()
        return tf.identity(x)
    # Not `all_reduce`: a graph of TensorFlow 1 with several local replicas does not support it.
    return replica.merge_call(
        lambda strategy, value: strategy.extended.reduce_over_replicas(reduce_op, value), args=(x,)
    )
