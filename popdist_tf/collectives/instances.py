"""Collectives among the instances of a PopDist job, with the meaning that SDK 3 gave them."""

from __future__ import annotations

import os
import sys
from typing import Any

import tensorflow as tf

import popdist
from popdist import backend
from popdist.backend import connected_by_gloo
from popdist.errors import BackendError
from popdist_tf.collectives.host import HostCollectives
from popdist_tf.errors import CollectiveError, StrategyError

# The real Horovod for TensorFlow, imported when it is needed.


def binding() -> Any:
    """Horovod's TensorFlow binding.

    Returns:
        The module ``horovod.tensorflow``.

    Raises:
        BackendError: It is not installed, or lacks its native extension.
    """
    try:
        import horovod.tensorflow as horovod
    except ImportError as error:
        raise BackendError(
            "PD010",
            "Horovod for TensorFlow cannot be imported",
            value=str(error),
            hint="python -m popdist.horovod_build",
        ) from None
    return horovod


def binding_is_initialised() -> bool:
    """Whether the program has initialised Horovod; does not import it.

    Returns:
        True after ``init`` and before ``shutdown``.
    """
    horovod = sys.modules.get("horovod.tensorflow")
    return horovod is not None and bool(horovod.is_initialized())


def initialised_collectives() -> HostCollectives:
    """The collectives of the Horovod job that the program has initialised.

    Returns:
        The collectives.

    Raises:
        StrategyError: Horovod is not initialised.
    """
    horovod = binding()
    if not horovod.is_initialized():
        raise StrategyError(
            "PD411",
            "Horovod has not been initialised",
            hint="call popdist_tf.ipu.horovod.init() first",
        )
    size = int(horovod.size())
    return HostCollectives(horovod if size > 1 else None, size, int(horovod.rank()))


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


# Horovod's basics under their published names, over the real ``horovod.tensorflow``.


# Horovod's own numbers for its reductions, known before it is initialised.
Average = binding().Average
Sum = binding().Sum
Adasum = binding().Adasum


def init(*args: Any, **kwargs: Any) -> None:
    """Starts Horovod among all processes of the job; safe to call again.

    A process that nobody launched is rank 0 of 1.

    Args:
        *args: Passed on to Horovod.
        **kwargs: Passed on to Horovod.
    """
    # popdist.execute_on_instances forms groups later, which must be allowed from the start.
    os.environ.setdefault("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    with connected_by_gloo(binding()):
        binding().init(*args, **kwargs)


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


shutdown = binding().shutdown
size = binding().size
rank = binding().rank
local_size = binding().local_size
local_rank = binding().local_rank
is_homogeneous = binding().is_homogeneous
mpi_threads_supported = binding().mpi_threads_supported
mpi_enabled = binding().mpi_enabled
mpi_built = binding().mpi_built
gloo_enabled = binding().gloo_enabled
gloo_built = binding().gloo_built
nccl_built = binding().nccl_built
ddl_built = binding().ddl_built
