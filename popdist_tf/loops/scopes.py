"""Published scopes and shards of device code: on a host, of the replica's own processor."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.framework.ops import get_gradient_function

import popdist
from popdist_tf.errors import LayerError
from popdist_tf.strategies.extended import device_code

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SHARD = "_popdist_shard"


@contextmanager
def ipu_scope(device: str) -> Iterator[None]:
    """Code in this scope stands for code on the device.

    Args:
        device: An IPU's name, as published. TensorFlow is not given the name, because it has
            no device of that name.

    Raises:
        ValueError: ``device`` does not name an IPU.
    """
    if "IPU" not in str(device).upper():
        raise ValueError(f"ipu_scope needs the name of an IPU, such as '/device:IPU:0': {device!r}")
    with device_code(), _local_device():
        yield


def _local_device() -> Any:
    if tf.distribute.has_strategy():  # which has set the replica's device already
        return nullcontext()
    gpu = tf.config.list_physical_devices("GPU")
    return tf.device("/device:GPU:0" if gpu else "/device:CPU:0")


@contextmanager
def ipu_shard(index: int | list[int]) -> Iterator[None]:
    """Assigns the operations in this scope to a shard.

    All shards of a replica are computed on the replica's one device, so results are the same.

    Args:
        index: The shard, or a list of shards. Operations of graphs remember it, see `get_sharding`,
            and so do those of their gradients.
    """
    if tf.executing_eagerly():
        yield
        return
    shards = [index] if isinstance(index, int) else list(index)
    value = attr_value_pb2.AttrValue(list=attr_value_pb2.AttrValue.ListValue(i=shards))
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    with graph._attr_scope({_SHARD: value}):  # noqa: SLF001 - no public way
        yield
    for operation in graph.get_operations()[before:]:
        with suppress(LookupError):  # of operations without a gradient
            gradient = get_gradient_function(operation)
            operation._gradient_function = gradient and _sharded(gradient, shards)  # noqa: SLF001


def _sharded(gradient: Any, shards: list[int]) -> Any:
    """A gradient function whose operations belong to shards."""

    def compute(*args: Any, **kwargs: Any) -> Any:
        with ipu_shard(shards):
            return gradient(*args, **kwargs)

    return compute


@contextmanager
def _without_effect(*_args: Any, **_kwargs: Any) -> Iterator[None]:
    yield


ipu_jit_scope = _without_effect
frontend_attribute = _without_effect
partials_type = _without_effect
stochastic_rounding = _without_effect
outside_compilation_scope = _without_effect


# Sharding: on the original hardware, parts of a model on devices of their own.


def ipu_autoshard() -> Any:
    """A scope whose operations the original divides over devices; without effect on a host."""
    return _without_effect()


def automatic_sharding(
    num_shards: int,
    input_ts: Any,
    loss_ts: Any,
    edge_filter: Any = None,
    frozen_inference: bool = False,
) -> None:
    """Divides a graph over devices, in the original; here a replica has one device.

    Args:
        num_shards: Accepted as published.
        input_ts: Accepted as published.
        loss_ts: Accepted as published.
        edge_filter: Accepted as published.
        frozen_inference: Accepted as published.
    """
    del num_shards, input_ts, loss_ts, edge_filter, frozen_inference


def has_attr(o: Any, attr_name: str) -> bool:
    """Whether an operation of a graph has an attribute.

    Args:
        o: An operation.
        attr_name: The attribute.
    """
    return attr_name in o.node_def.attr


def get_sharding(op: Any) -> list[int] | None:
    """The shards of an operation of a graph.

    Args:
        op: An operation.

    Returns:
        The indices that `ipu_shard` was given, or None for an operation of no shard.
    """
    return list(op.get_attr(_SHARD)) if has_attr(op, _SHARD) else None


def dependencies(roots: Any) -> list[Any]:
    """The operations of a graph that some operations depend on.

    Args:
        roots: Operations.

    Returns:
        These operations and all that they read, those without inputs last, each once.
    """
    found: dict[Any, None] = {}
    pending = list(roots)
    while pending:
        following: dict[Any, None] = {}
        for operation in pending:
            if operation not in found:
                found[operation] = None
                following |= dict.fromkeys(one.op for one in operation.inputs)
        pending = list(following)
    return list(found)


def propagate_sharding(g: Any) -> None:
    """Gives the operations of the backward pass the shards of those that they belong to.

    Args:
        g: A graph. Operations that are colocated with a sharded one get its shards.
    """
    operations = g.get_operations()
    by_name = {operation.name: operation for operation in operations}
    for operation in operations:
        if get_sharding(operation) is not None:
            continue
        for group in operation.colocation_groups():
            beside = by_name.get(group.decode().removeprefix("loc:@"))
            shards = None if beside is None else get_sharding(beside)
            if shards is not None:
                held = attr_value_pb2.AttrValue.ListValue(i=shards)
                operation._set_attr(_SHARD, attr_value_pb2.AttrValue(list=held))  # noqa: SLF001
                break


# Reductions over the shards of one replica: a list has one tensor for each shard.


_OVER_SHARDS = {
    "ADD": tf.add_n,
    "MAX": lambda shards: tf.reduce_max(tf.stack(shards), axis=0),
    "MEAN": lambda shards: tf.add_n(shards) / tf.cast(len(shards), shards[0].dtype),
    "MIN": lambda shards: tf.reduce_min(tf.stack(shards), axis=0),
    "MUL": lambda shards: tf.reduce_prod(tf.stack(shards), axis=0),
    "LOGICAL_AND": lambda shards: tf.reduce_all(tf.stack(shards), axis=0),
    "LOGICAL_OR": lambda shards: tf.reduce_any(tf.stack(shards), axis=0),
}


def _checked(input_shards: Sequence[Any]) -> list[Any]:
    """The tensors of all shards, after the original's checks."""
    shards = [tf.convert_to_tensor(one) for one in input_shards]
    if len({id(one) for one in shards}) != len(shards):
        raise ValueError("input_shards should not contain any duplicate entries.")
    if len({one.dtype for one in shards}) > 1:
        raise ValueError("Expected tensors to all be of the same type.")
    if len({one.shape.rank for one in shards}) > 1:
        raise ValueError("Expected tensors to all be of the same rank.")
    return shards


def gather_shards(input_shards: Sequence[Any], axis: int = 0) -> tuple[Any, ...]:
    """Joins the tensors of all shards.

    Args:
        input_shards: A tensor of each shard.
        axis: Along which they are joined.

    Returns:
        The joined tensor, once for each shard.
    """
    shards = _checked(input_shards)
    joined = tf.stack(shards) if shards[0].shape.rank == 0 else tf.concat(shards, axis)
    return (joined,) * len(shards)


def reduce_shards(input_shards: Sequence[Any], op: Any) -> tuple[Any, ...]:
    """Reduces the tensors of all shards.

    Args:
        input_shards: A tensor of each shard, of rank 0 or 1; shorter ones are filled up with zeros.
        op: "COLLECTIVE_OP_ADD", or likewise with MAX, MEAN, MIN, MUL, LOGICAL_AND or LOGICAL_OR.

    Returns:
        The result, once for each shard.

    Raises:
        LayerError: The reduction does not exist.
        ValueError: A shard occurs twice, or shards differ in dtype or rank.
    """
    shards = [
        tf.reshape(one, [1]) if one.shape.rank == 0 else one for one in _checked(input_shards)
    ]
    longest = max(one.shape[0] for one in shards)
    filled = [
        tf.pad(one, [[0, longest - one.shape[0]], *([[0, 0]] * (one.shape.rank - 1))])
        for one in shards
    ]
    return (reduce_rows(filled, op),) * len(shards)


def reduce_rows(rows: Sequence[Any], op: Any) -> Any:
    """Reduces tensors of one shape, of any rank.

    Args:
        rows: The tensors.
        op: As for `reduce_shards`.

    Raises:
        LayerError: The reduction does not exist.
    """
    return _OVER_SHARDS[reduction_name(op)](rows)


def reduction_name(op: Any) -> str:
    """The short name of a published reduction, such as ``ADD`` for ``"COLLECTIVE_OP_ADD"``.

    Args:
        op: The reduction.

    Returns:
        ADD, MAX, MEAN, MIN, MUL, LOGICAL_AND or LOGICAL_OR.

    Raises:
        LayerError: The reduction does not exist.
    """
    name = str(getattr(op, "name", op)).upper().removeprefix("COLLECTIVE_OP_")
    if name not in _OVER_SHARDS:
        raise LayerError(
            "PD434",
            "shards cannot be reduced in this way",
            value=op,
            accepted=", ".join(f"COLLECTIVE_OP_{one}" for one in _OVER_SHARDS),
        )
    return name


def reduce_and_divide_shards(input_shards: Sequence[Any], op: Any) -> tuple[Any, ...]:
    """Reduces the tensors of all shards, and gives each shard a part of the result.

    Args:
        input_shards: A tensor of each shard, all of one shape.
        op: As for `reduce_shards`.

    Returns:
        For each shard its part of the flattened result. Parts are equal within one element, and
        filled up with zeros to the same size.

    Raises:
        LayerError: The reduction does not exist.
    """
    total = tf.reshape(reduce_shards(input_shards, op)[0], [-1])
    count = len(input_shards)
    size, more = divmod(total.shape[0], count)
    parts = tf.split(total, [size + (i < more) for i in range(count)])
    return tuple(tf.pad(one, [[0, size + (more > 0) - one.shape[0]]]) for one in parts)


def move_variable_initialization_to_cpu(graph: Any = None) -> None:
    """Does nothing: variables are initialised on the host in any case.

    Args:
        graph: Accepted as published.
    """
    del graph


def running_on_ipu_model() -> bool:
    """Whether an emulated IPU is used: never, on a host."""
    return False


def get_num_of_ipus_in_device(ipu_device: str, device: str = "cpu") -> int:
    """How many local devices this process computes with.

    Args:
        ipu_device: Accepted as published.
        device: Accepted as published.

    Returns:
        One for each local replica.
    """
    del ipu_device, device
    return popdist.topology().num_local_replicas
