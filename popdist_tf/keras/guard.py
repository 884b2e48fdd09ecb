"""Stops a training whose instances hold different weights after the first step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from popdist_tf.collectives.digests import assert_equal_weights
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
        weights = [(variable_name(variable), variable) for variable in variables]
        return assert_equal_weights(self._collectives, weights, _MESSAGE)
