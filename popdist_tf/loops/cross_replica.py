"""Sums and means over replicas, in device code."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from popdist_tf.strategies.popdist_strategy import PopDistStrategy


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
        return tf.identity(x)
    # Not `all_reduce`, which a graph of TensorFlow 1 with several local replicas cannot take.
    return replica.merge_call(
        lambda strategy, value: strategy.extended.reduce_to(reduce_op, value, value), args=(x,)
    )
