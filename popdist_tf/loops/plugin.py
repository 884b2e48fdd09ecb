"""Operations that programs take from the original's plugin of TensorFlow, below its public ones."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v2 as tf

from popdist_tf.errors import LayerError
from popdist_tf.loops.operations import keep_with_graph
from popdist_tf.loops.replicas import replica_count
from popdist_tf.replica_state import ReplicaState, new_counter


def ipu_event_trace(name: str | None = None) -> Any:
    """The events that the original's compiler and device have recorded: none, on a host.

    Args:
        name: Of the operation.

    Returns:
        A string tensor without elements.
    """
    return tf.constant([], tf.string, name=name or "ipu_event_trace")


def ipu_multi_slice(input: Any, indices: Any, name: str | None = None) -> Any:  # noqa: A002 - published
    """Rows of a table.

    Args:
        input: The table.
        indices: Which rows.
        name: Of the operation.

    Returns:
        Shape ``(*indices.shape, *input.shape[1:])``.
    """
    return tf.gather(input, indices, name=name)


def ipu_multi_update_add(
    input: Any,  # noqa: A002 - published
    indices: Any,
    updates: Any,
    scale: Any,
    name: str | None = None,
) -> Any:
    """Adds scaled rows to rows of a table; a row may be named several times.

    Args:
        input: The table.
        indices: One row for each update.
        updates: What is added, after the multiplication.
        scale: What updates are multiplied with.
        name: Of the operation.

    Returns:
        As ``input``.
    """
    table = tf.convert_to_tensor(input)
    rows = tf.cast(updates, table.dtype) * tf.cast(scale, table.dtype)
    places = tf.convert_to_tensor(indices)[..., tf.newaxis]
    return tf.tensor_scatter_nd_add(table, places, rows, name=name)


def ipu_replication_normalise(input: Any, name: str | None = None) -> Any:  # noqa: A002 - published
    """Divides a tensor by the number of replicas; see `cross_replica_sum` for which.

    Args:
        input: A tensor.
        name: Of the operation.

    Returns:
        As ``input``.
    """
    tensor = tf.convert_to_tensor(input)
    return tf.divide(tensor, tf.cast(replica_count(), tensor.dtype), name=name)


def ipu_stateful_gradient_accumulate(
    input: Any,  # noqa: A002 - published
    num_mini_batches: int,
    verify_usage: bool = True,
    name: str | None = None,
) -> Any:
    """Sums a gradient over several mini-batches, in a loop or function that runs repeatedly.

    Each call in the program's text has a sum of its own, of its replica.

    Args:
        input: The gradient of a mini-batch, of a fixed shape.
        num_mini_batches: Mini-batches of a sum.
        verify_usage: Accepted as published.
        name: Of the operation.

    Returns:
        The sum with the last of the mini-batches, and zeros with all others.

    Raises:
        LayerError: The shape is unknown, or the code is eager.
    """
    del verify_usage
    gradient = tf.convert_to_tensor(input)
    if tf.executing_eagerly() or not gradient.shape.is_fully_defined():
        raise LayerError(
            "PD434",
            "ipu_stateful_gradient_accumulate cannot hold a sum of this",
            value=f"shape {gradient.shape}" + (", in eager code" if tf.executing_eagerly() else ""),
            accepted="a fixed shape, in code of a loop or tf.function",
        )
    total = ReplicaState(lambda: tf.zeros(gradient.shape, gradient.dtype), "accumulated/total")
    count = new_counter("accumulated/count")
    keep_with_graph(total, count)
    is_last = tf.equal(count.assign_add(1) % num_mini_batches, 0)
    summed = total.assign_add(gradient)
    answer = tf.where(is_last, summed, tf.zeros_like(summed))
    with tf.control_dependencies([answer]):
        kept = total.assign(tf.where(is_last, tf.zeros_like(summed), summed), read_value=False)
    with tf.control_dependencies([] if kept is None else [kept]):
        return tf.identity(answer, name=name)
