"""Several updates in one call into TensorFlow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable


def repeated(count: int, update: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
    """Runs an update several times, one after the other.

    Args:
        count: How often.
        update: Builds one update; returns its loss and what trains.

    Returns:
        The mean loss, and an operation that has run all updates.
    """

    def body(done: Any, total: Any) -> tuple[Any, Any]:
        loss, train_op = update()
        with tf.control_dependencies([train_op]):
            return done + 1, total + tf.cast(loss, tf.float32)

    # One iteration at a time: a collective may not start again before it has ended.
    done, total = tf.compat.v1.while_loop(
        lambda done, _: done < count,
        body,
        [tf.constant(0), tf.constant(0.0)],
        parallel_iterations=1,
        back_prop=False,
    )
    return total / count, done.op
