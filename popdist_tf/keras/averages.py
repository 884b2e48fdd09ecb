"""Optimizers of Keras 3 that overwrite weights by their moving averages.

Keras decides in a branch of the step whether it is time to (``ema_overwrite_frequency``). Local
replicas and workers cannot meet inside of a branch. So under a strategy of several replicas, the
same values are selected here without one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf

from popdist_tf.patches import surround
from popdist_tf.versions import keras_is_3, tensorflow_variable

if TYPE_CHECKING:
    from collections.abc import Callable


def overwrite_by_averages_where(selects: Callable[[], bool]) -> None:
    """Makes Keras 3 overwrite weights by their averages without a branch; safe to call again.

    Args:
        selects: Whether the current strategy's replicas cannot meet inside of a branch.
    """
    if not keras_is_3():
        return
    optimizer: Any = import_module("keras.src.backend.tensorflow.optimizer").TFOptimizer

    def in_step() -> bool:
        return tf.distribute.get_replica_context() is not None and selects()

    def average_and_overwrite(averaged: Any, self: Any, trainable_variables: Any) -> None:
        averaged(self, trainable_variables)
        if self.ema_overwrite_frequency and in_step():
            step = tf.convert_to_tensor(self.iterations) + 1
            held = zip(trainable_variables, self._model_variables_moving_average, strict=True)
            pairs = [tuple(map(tensorflow_variable, one)) for one in held if one[1] is not None]
            is_due = tf.equal(step % self.ema_overwrite_frequency, 0)
            tf.__internal__.distribute.interim.maybe_merge_call(
                _select, self._distribution_strategy, pairs, is_due
            )

    def overwrite(overwritten: Any, self: Any, trainable_variables: Any) -> None:
        # In a step this is Keras' branch, whose work is done. At the end of `fit` it is not.
        if not in_step():
            overwritten(self, trainable_variables)

    average, copied = (
        "_update_model_variables_moving_average",
        "_overwrite_model_variables_with_average_value",
    )
    surround(optimizer, average, "overwrites", average_and_overwrite)
    surround(optimizer, copied, "overwrites", overwrite)


def _select(distribution: Any, pairs: Any, is_due: Any) -> None:
    def choose(weight: Any, average: Any, is_due: Any) -> None:
        weight.assign(tf.where(is_due, average, weight))

    for weight, average in pairs:
        distribution.extended.update(weight, choose, args=(average, is_due), group=False)
