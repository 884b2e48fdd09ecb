"""Stops a training whose instances hold different weights after the first step.

Gradients that are reduced keep equal weights equal, and different weights different: nothing else
would show it. The comparison is part of the step, because a step may be one of many in a compiled
loop; it runs once, and sends one number for each variable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from popdist_tf.versions import variable_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_tf.collectives.host import HostCollectives

_MESSAGE = (
    "[PD413] the instances hold different weights after the first step: each would train a model "
    "of its own. Add popdist_tf.keras.callbacks.BroadcastGlobalVariablesCallback(0) to fit (and "
    "give the model an input shape where steps_per_execution is more than 1), or call "
    "popdist_tf.keras.broadcast_variables before a loop of your own. The weights that differ:"
)
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # spreads positions over 64 bits


class DivergenceGuard:
    """Compares the weights of all instances once, before the second update.

    Args:
        collectives: The job's collectives.
    """

    def __init__(self, collectives: HostCollectives) -> None:
        self._collectives = collectives
        self._updates: tf.Variable | None = None

    def before_update(self, variables: Sequence[Any]) -> None:
        """Counts an update that is about to be made; compares before the second one.

        Args:
            variables: The weights of the update, the same ones on every instance.
        """
        if self._updates is None:
            # Counts in this process, from zero, unlike the optimizer's own count after resuming:
            # all instances get to the comparison together.
            with tf.init_scope():
                self._updates = tf.Variable(0, dtype=tf.int64, trainable=False)
        count = self._updates.assign_add(1)
        tf.cond(count == 2, lambda: self._compare(variables), lambda: True)  # noqa: PLR2004

    def _compare(self, variables: Sequence[Any]) -> Any:
        own = tf.stack([_digest(tf.convert_to_tensor(variable)) for variable in variables])
        rows = self._collectives.allgather(own[tf.newaxis])
        differ = tf.reduce_any(rows != rows[0], axis=0)
        names = tf.constant([variable_name(variable) for variable in variables])
        equal = tf.logical_not(tf.reduce_any(differ))
        check = tf.debugging.Assert(equal, [_MESSAGE, tf.boolean_mask(names, differ)], 5)
        with tf.control_dependencies([] if check is None else [check]):
            return tf.identity(equal)


def _digest(weight: Any) -> Any:
    """A number that changes with any bit of a tensor."""
    bits = tf.reshape(tf.bitcast(weight, tf.uint8), [-1])
    positions = tf.range(1, tf.size(bits, tf.int64) + 1, dtype=tf.int64)
    return tf.reduce_sum((tf.cast(bits, tf.int64) + 1) * (positions * _ODD + 1))
