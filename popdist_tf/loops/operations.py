"""Operations of device code for which TensorFlow has its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable


def gelu(x: Any, approximate: bool = True, name: str | None = None) -> Any:
    """The Gaussian error linear unit.

    Args:
        x: Floating point values.
        approximate: Whether ``tanh`` stands in for the error function, as in the original.
        name: Of the operation.

    Returns:
        As ``x``.
    """
    return tf.nn.gelu(x, approximate=approximate, name=name)


def softmax(x: Any, stable: bool = False, name: str | None = None) -> Any:
    """The softmax over the last dimension.

    Args:
        x: Floating point values.
        stable: Accepted as published: TensorFlow's is stable.
        name: Of the operation.

    Returns:
        As ``x``.
    """
    del stable
    return tf.nn.softmax(x, name=name)


def embedding_lookup(
    params: Any,
    ids: Any,
    name: str | None = None,
    serialization_factor: int = 1,
    indices_are_sorted: bool = False,
) -> Any:
    """The rows of a table.

    Args:
        params: The table: a variable or tensor of at least one dimension.
        ids: Which rows; integers of any shape.
        name: Of the operation.
        serialization_factor: Accepted as published, without effect on a host.
        indices_are_sorted: Accepted as published, without effect on a host.

    Returns:
        Shape ``(*ids.shape, *params.shape[1:])``.
    """
    del serialization_factor, indices_are_sorted
    return tf.nn.embedding_lookup(params, ids, name=name)


def print_tensor(input: Any, name: str = "") -> Any:  # noqa: A002 - published name
    """Prints a tensor.

    Args:
        input: The tensor.
        name: What is printed before it; its own name where it is empty.

    Returns:
        The operation that prints, in graph mode; None otherwise.
    """
    own = "" if tf.executing_eagerly() else getattr(input, "name", "")
    return tf.print(name or own, input)


def remap(x: Any, name: str | None = None) -> Any:
    """Leaves a tensor where it is: on a host it is not spread over tiles.

    Args:
        x: A tensor.
        name: Of the operation.

    Returns:
        The tensor.
    """
    return tf.identity(x, name=name)


def outlined_function(
    func: Callable[..., Any] | None = None,
    unique_sharding: bool = False,
    keep_input_layouts: bool | None = None,
    name: str | None = None,
) -> Any:
    """Marks a function whose code the original shares between its calls.

    Args:
        func: The function; None where this is used as a decorator with arguments.
        unique_sharding: Accepted as published, without effect on a host.
        keep_input_layouts: Accepted as published, without effect on a host.
        name: Accepted as published.

    Returns:
        The function, or what decorates it.
    """
    del unique_sharding, keep_input_layouts, name
    return (lambda function: function) if func is None else func


def replication_index(name: str | None = None) -> Any:
    """Which of all replicas of the job runs this code.

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
