"""The collectives of the published ``ipu.horovod`` module, over the real Horovod."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v2 as tf

from popdist_tf.collectives.instances import Average, initialised_collectives, require_op
from popdist_tf.collectives.names import pairing_name


def allreduce(tensor: Any, op: Any = None) -> Any:
    """Reduces a tensor over all ranks.

    Args:
        tensor: A tensor of any shape and numeric dtype, or IndexedSlices.
        op: `Average` (the default) or `Sum`. The average of integers is a float64: the sum is
            divided truly, where stock Horovod truncates.

    Returns:
        The reduced tensor. IndexedSlices are concatenated, and averaged by their values.

    Raises:
        NotImplementedError: `Adasum`.
        CollectiveError: Another operation, or a dtype that has no sum.
    """
    op = require_op(op)
    collectives = initialised_collectives()
    if isinstance(tensor, tf.IndexedSlices):
        rows, places = (pairing_name(one, None) for one in (tensor.values, tensor.indices))
        values = collectives.allgather(tensor.values, tensor_name=rows)
        return tf.IndexedSlices(
            values=values / collectives.size if op == Average else values,
            indices=collectives.allgather(tensor.indices, tensor_name=places),
            dense_shape=tensor.dense_shape,
        )
    total = collectives.allreduce(tensor, pairing_name(tensor, None))
    return total / collectives.size if op == Average else total


def allgather(tensor: Any, name: str | None = None) -> Any:
    """Concatenates the ranks' tensors along their first dimension, in rank order.

    Args:
        tensor: At least one dimension; the first may differ between ranks.
        name: By which the ranks' calls find each other. None takes the tensor's own name in a
            graph or function, and the order of the calls in eager code.

    Returns:
        The concatenation.
    """
    return initialised_collectives().allgather(tensor, tensor_name=pairing_name(tensor, name))


def broadcast(tensor: Any, root_rank: int, name: str | None = None) -> Any:
    """The root's tensor, on every rank.

    Args:
        tensor: Any shape and dtype but strings.
        root_rank: The rank whose value counts.
        name: By which the ranks' calls find each other. None takes the tensor's own name in a
            graph or function, and the order of the calls in eager code.

    Returns:
        The root's value.
    """
    return initialised_collectives().broadcast(tensor, root_rank, pairing_name(tensor, name))
