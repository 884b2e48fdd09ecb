"""Collectives among the instances of a PopDist job, with the meaning that SDK 3 gave them."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

import popdist
from popdist import backend
from popdist_tf.collectives.binding import binding_is_initialised, initialised_collectives
from popdist_tf.collectives.host import HostCollectives
from popdist_tf.errors import CollectiveError, StrategyError


def job_collectives() -> HostCollectives:
    """The collectives of this job; starts host communication where it is not started.

    A program that has initialised Horovod itself, under mpirun or horovodrun alone, is taken at its
    word: the instances are Horovod's ranks.

    Returns:
        The collectives.

    Raises:
        StrategyError: mpirun alone started several processes, and Horovod is not initialised.
    """
    if not popdist.isPopdistEnvSet():
        if binding_is_initialised():
            return initialised_collectives()
        started = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
        if started > 1:
            raise StrategyError(
                "PD411",
                f"mpirun started {started} processes that know nothing of each other yet: each "
                "would train alone",
                hint="start the job with poprun, or call popdist_tf.ipu.horovod.init() first",
            )
    popdist.init()
    here = backend.current()
    return HostCollectives(here.horovod, here.num_instances, here.instance_index)


def allreduce(value: Any, reduce_op: Any, tensor_name: str | None = None) -> Any:
    """Reduces a tensor over the instances.

    Args:
        value: Any shape and numeric dtype.
        reduce_op: `tf.distribute.ReduceOp` SUM or MEAN. MEAN of integers divides as integers do.
        tensor_name: Accepted as published; instances find each other's call by its order.

    Returns:
        The reduced tensor, in the dtype of ``value``.

    Raises:
        CollectiveError: Another reduction, or a dtype that has no sum.
    """
    del tensor_name
    if reduce_op not in (tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN):
        raise CollectiveError(
            "PD410",
            "this reduction over instances is not supported",
            value=reduce_op,
            accepted="tf.distribute.ReduceOp.SUM or tf.distribute.ReduceOp.MEAN",
        )
    collectives = job_collectives()
    total = collectives.allreduce(value)
    if reduce_op == tf.distribute.ReduceOp.SUM:
        return total
    count = tf.cast(collectives.size, total.dtype)
    return total // count if total.dtype.is_integer else total / count


def broadcast(value: Any, root_rank: int = 0, tensor_name: str | None = None) -> Any:
    """The root instance's tensor, on every instance.

    Args:
        value: Any shape and dtype but strings.
        root_rank: The instance whose value counts.
        tensor_name: Accepted as published; instances find each other's call by its order.

    Returns:
        The root's value.
    """
    del tensor_name
    return job_collectives().broadcast(value, root_rank)


def allgather(value: Any, tensor_name: str | None = None) -> Any:
    """Stacks the instances' tensors.

    Args:
        value: Any shape, the same on every instance.
        tensor_name: Accepted as published; instances find each other's call by its order.

    Returns:
        Shape ``(instances, *shape)``, in the order of instances.
    """
    del tensor_name
    return job_collectives().allgather(tf.expand_dims(tf.convert_to_tensor(value), 0))
