"""Comparing weights inside of a graph: a number for each, compared over the instances.

Gradients that are reduced keep equal weights equal, and different weights different: nothing else
would show it. The comparison is part of a step, because a step may be one of many in a compiled
loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_tf.collectives.host import HostCollectives

_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # spreads positions over 64 bits


def assert_equal_weights(
    collectives: HostCollectives,
    weights: Sequence[tuple[str, Any]],
    message: str,
    label: str | None = None,
) -> Any:
    """Checks that all instances hold the same weights, bit for bit; every instance must run it.

    Args:
        collectives: The job's collectives.
        weights: Names and values, the same weights in the same order on every instance.
        message: What the error says; the names of the weights that differ follow.
        label: By which the instances' calls find each other where their graphs may differ; None
            for the order of the collectives in the graph.

    Returns:
        A boolean scalar that is true, or fails with ``message`` when it is computed.
    """
    own = tf.stack([digest(value) for _, value in weights])
    rows = collectives.allgather(own[tf.newaxis], label)
    differ = tf.reduce_any(rows != rows[0], axis=0)
    names = tf.constant([name for name, _ in weights])
    equal = tf.logical_not(tf.reduce_any(differ))
    check = tf.debugging.Assert(equal, [message, tf.boolean_mask(names, differ)], 5)
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(equal)


def digest(weight: Any) -> Any:
    """A number that changes with any bit of a tensor.

    Args:
        weight: A tensor or variable.

    Returns:
        An int64 scalar.
    """
    bits = tf.reshape(tf.bitcast(tf.convert_to_tensor(weight), tf.uint8), [-1])
    positions = tf.range(1, tf.size(bits, tf.int64) + 1, dtype=tf.int64)
    return tf.reduce_sum((tf.cast(bits, tf.int64) + 1) * (positions * _ODD + 1))
