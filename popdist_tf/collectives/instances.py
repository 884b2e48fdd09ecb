"""Collectives among the instances of a PopDist job, with the meaning that SDK 3 gave them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import popdist
from popdist import backend
from popdist_tf.collectives.host import HostCollectives
from popdist_tf.errors import CollectiveError, StrategyError


def initialised_collectives() -> HostCollectives:
    """The collectives of the Horovod job that the program has initialised.

    Returns:
        The collectives.

    Raises:
        StrategyError: Horovod is not initialised.
    """
    horovod = backend.started("tensorflow")
    if horovod is None:
        raise StrategyError(
            "PD411",
            "Horovod has not been initialised",
            hint="call popdist_tf.ipu.horovod.init() first",
        )
    size = int(horovod.size())
    return HostCollectives(horovod if size > 1 else None, size, int(horovod.rank()))


def job_collectives() -> HostCollectives:
    """The collectives of this job; starts host communication where it is not started.

    A program that has initialised Horovod itself, without poprun, is taken at its word: the
    instances are Horovod's ranks.

    Returns:
        The collectives.

    Raises:
        StrategyError: Another launcher started several processes, and Horovod is not initialised.
    """
    here = backend.launch()
    connected = backend.started("tensorflow") is not None
    if not (connected or here.alone or here.by == "poprun"):
        raise StrategyError(
            "PD411",
            f"{here.by} started {here.size or 'several'} processes that know nothing of each "
            "other yet: each would train alone",
            hint="start the job with poprun, or call popdist_tf.ipu.horovod.init() first",
        )
    horovod = backend.connect("tensorflow")
    popdist.init()
    if horovod is None:
        return HostCollectives(None, 1, 0)
    return HostCollectives(horovod, int(horovod.size()), int(horovod.rank()))


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


# Horovod's basics under their published names, over the real ``horovod.tensorflow``.


_binding = backend.binding("tensorflow")
# Horovod's own numbers for its reductions, known before it is initialised.
Average = _binding.Average
Sum = _binding.Sum
Adasum = _binding.Adasum


def init(*args: Any, **kwargs: Any) -> None:
    """Starts Horovod among all processes of the job; safe to call again.

    A process that nobody launched is rank 0 of 1.

    Args:
        *args: Passed on to Horovod.
        **kwargs: Passed on to Horovod.
    """
    backend.start("tensorflow", *args, **kwargs)


def require_op(op: Any) -> Any:
    """Which reduction a program asks for.

    Args:
        op: `Average` or `Sum`; None for `Average`.

    Returns:
        One of the two.

    Raises:
        NotImplementedError: `Adasum`.
        CollectiveError: Another operation.
    """
    op = Average if op is None else op
    if op == Adasum:
        raise NotImplementedError("The Adasum reduction is not implemented")
    if op not in (Average, Sum):
        raise CollectiveError(
            "PD410", "this reduction is not supported", value=op, accepted="Average or Sum"
        )
    return op


shutdown = _binding.shutdown
size = _binding.size
rank = _binding.rank
local_size = _binding.local_size
local_rank = _binding.local_rank
is_homogeneous = _binding.is_homogeneous
mpi_threads_supported = _binding.mpi_threads_supported
mpi_enabled = _binding.mpi_enabled
mpi_built = _binding.mpi_built
gloo_enabled = _binding.gloo_enabled
gloo_built = _binding.gloo_built
nccl_built = _binding.nccl_built
ddl_built = _binding.ddl_built
