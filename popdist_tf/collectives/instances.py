"""The job that a TensorFlow program runs in, and collectives among its instances.

The collectives have the meaning that SDK 3 gave them (``ipu.distributed.host_collective_ops``);
those of ``ipu.horovod`` are in `popdist_tf.collectives.published`.
"""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v2 as tf

import popdist
from popdist import backend
from popdist_tf.collectives.host import HostCollectives
from popdist_tf.collectives.names import pairing_name
from popdist_tf.errors import CollectiveError, StrategyError


def initialised_collectives() -> HostCollectives:
    """The collectives of the Horovod job that the program has initialised.

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
    """The collectives of this job; starts host communication if it has not started.

    If a program without poprun has initialised Horovod itself, the instances are Horovod's ranks.

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


def place_in_job() -> tuple[int, int]:
    """The number of instances and this instance's index, without starting communication.

    Poprun's values come first, then those of an initialised Horovod, then another launcher's.
    """
    here = backend.launch()
    horovod = backend.started("tensorflow")
    if horovod is not None and here.by != "poprun":
        return int(horovod.size()), int(horovod.rank())
    return here.size or 1, here.rank or 0


def allreduce(value: Any, reduce_op: Any, tensor_name: str | None = None) -> Any:
    """Reduces a tensor over the instances.

    Args:
        value: Any shape and numeric dtype.
        reduce_op: `tf.distribute.ReduceOp` SUM or MEAN. MEAN of integers divides as integers do.
        tensor_name: By which the instances' calls find each other. None takes the tensor's own
            name in a graph or function, and the order of the calls in eager code.

    Returns:
        The reduced tensor, in the dtype of ``value``.

    Raises:
        CollectiveError: Another reduction, or a dtype that has no sum.
        UnknownError: Instances pass other shapes or dtypes.
    """
    if reduce_op not in (tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN):
        raise CollectiveError(
            "PD410",
            "this reduction over instances is not supported",
            value=reduce_op,
            accepted="tf.distribute.ReduceOp.SUM or tf.distribute.ReduceOp.MEAN",
        )
    collectives = job_collectives()
    name = pairing_name(value, tensor_name)
    total = collectives.allreduce(_of_equal_layout(collectives, value, name), name)
    if reduce_op == tf.distribute.ReduceOp.SUM:
        return total
    count = tf.cast(collectives.size, total.dtype)
    return total // count if total.dtype.is_integer else total / count


def broadcast(value: Any, root_rank: int = 0, tensor_name: str | None = None) -> Any:
    """The root instance's tensor, on every instance.

    Args:
        value: Any shape and dtype but strings.
        root_rank: The instance whose value counts.
        tensor_name: By which the instances' calls find each other. None takes the tensor's own
            name in a graph or function, and the order of the calls in eager code.

    Returns:
        The root's value.
    """
    collectives, name = job_collectives(), pairing_name(value, tensor_name)
    return collectives.broadcast(_of_equal_layout(collectives, value, name), root_rank, name)


def allgather(value: Any, tensor_name: str | None = None) -> Any:
    """Stacks the instances' tensors.

    Args:
        value: Any shape, the same on every instance.
        tensor_name: By which the instances' calls find each other. None takes the tensor's own
            name in a graph or function, and the order of the calls in eager code.

    Returns:
        Shape ``(instances, *shape)``, in the order of instances.
    """
    collectives, name = job_collectives(), pairing_name(value, tensor_name)
    row = tf.expand_dims(_of_equal_layout(collectives, value, name), 0)
    return collectives.allgather(row, tensor_name=name)


# Dtypes and shapes of the tensors of ``host_collective_ops``, which have to be equal. The original
# fails with an UnknownError of a certain text, whatever is exchanged.

_LAYOUT = "Tensor layouts did not match on all instances"
_MOST_DIMENSIONS = 16


def _of_equal_layout(collectives: HostCollectives, value: Any, name: str | None) -> Any:
    """The value as a tensor, which exists only where all instances have the same layout.

    Raises:
        UnknownError: Layouts differ; raised on all instances, in a graph when it runs.
    """
    value = tf.convert_to_tensor(value)
    if collectives.horovod is None:
        return value
    shape = tf.shape(value, tf.int64)[:_MOST_DIMENSIONS]
    filled = tf.pad(shape + 1, [[0, _MOST_DIMENSIONS - tf.size(shape)]])
    layout = tf.concat([[value.dtype.as_datatype_enum], filled], 0)
    rows = collectives.allgather(layout[tf.newaxis], tensor_name=name and f"{name}_layout")
    if tf.executing_eagerly():
        if (rows != rows[0]).numpy().any():
            raise tf.errors.UnknownError(None, None, _differing_layouts(rows.numpy()))
        return value

    def fail() -> Any:
        # TensorFlow makes an UnknownError of it.
        return tf.numpy_function(_raise_differing_layouts, [rows], tf.bool)

    equal = tf.reduce_all(tf.equal(rows, rows[0]))
    with tf.control_dependencies([tf.cond(equal, lambda: tf.constant(value=True), fail)]):
        return tf.identity(value)


def _differing_layouts(rows: Any) -> str:
    found = [
        f"{tf.dtypes.as_dtype(int(kind)).name}{[int(size) - 1 for size in sizes if size]}"
        for kind, *sizes in rows
    ]
    says = "; ".join(f"{layout} on instance {number}" for number, layout in enumerate(found))
    return f"[PD410] {_LAYOUT}: {says}. Pass the same shape and dtype on every instance."


def _raise_differing_layouts(rows: Any) -> None:
    raise RuntimeError(_differing_layouts(rows))


# Horovod's basics under their published names, over the real ``horovod.tensorflow``. Each loads
# Horovod on its first use: a program of one process needs no Horovod.


_BASICS = {
    "Adasum",
    "Average",
    "Sum",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "is_homogeneous",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "shutdown",
    "size",
}


def __getattr__(name: str) -> Any:
    if name in _BASICS:
        return getattr(backend.binding("tensorflow"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)


def init(*args: Any, **kwargs: Any) -> None:
    """Starts Horovod among all processes of the job; safe to call again.

    A process that no launcher started is rank 0 of 1.

    Args:
        *args: Passed on to Horovod.
        **kwargs: Passed on to Horovod.
    """
    backend.start("tensorflow", *args, **kwargs)


def require_op(op: Any) -> Any:
    """Horovod's ``Average`` or ``Sum``; None stands for ``Average``.

    Raises:
        NotImplementedError: Horovod's ``Adasum``.
        CollectiveError: Another operation.
    """
    horovod = backend.binding("tensorflow")
    op = horovod.Average if op is None else op
    if op == horovod.Adasum:
        raise NotImplementedError("The Adasum reduction is not implemented")
    if op not in (horovod.Average, horovod.Sum):
        raise CollectiveError(
            "PD410", "this reduction is not supported", value=op, accepted="Average or Sum"
        )
    return op
