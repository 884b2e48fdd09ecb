"""Stops a training under a strategy whose instances hold different weights after the first step.

The strategy gives all instances the first one's initial values and reduces their gradients. What
still makes them differ comes later: weights that one of them has loaded by itself, a learning rate
or an option of the optimizer that depends on the rank.
"""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.eager import def_function
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from popdist_tf.collectives.digests import assert_equal_weights

if TYPE_CHECKING:
    from collections.abc import Iterator

    from popdist_tf.collectives.host import HostCollectives

MESSAGE = (
    "[PD413] the instances hold different weights after the first step: each would train a model "
    "of its own. Give the optimizer the same settings (the learning rate, say) on all instances, "
    "and load weights on all of them. The weights that differ:"
)


class StepGuard:
    """Compares, after the first step that updates them, the weights that it updates.

    Args:
        collectives: The job's collectives.
    """

    def __init__(self, collectives: HostCollectives) -> None:
        self._collectives = collectives
        self._updated: dict[str, Any] | None = None  # inside of a step
        self._steps: dict[tuple[str, ...], ResourceVariable] = {}
        # TensorFlow builds a function once, and what it updates is seen then alone.
        self._known: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()

    def note(self, variable: Any) -> None:
        """Takes notice of an update.

        Args:
            variable: A variable of the strategy.
        """
        if self._updated is not None and getattr(variable, "trainable", False):
            # Names of variables are not unique, and variables cannot be compared.
            self._updated[variable.values[0]._unique_id] = variable

    @contextmanager
    def step(self, function: Any) -> Iterator[None]:
        """Surrounds the code that builds, or runs, a step on all replicas.

        Args:
            function: What the replicas are given to run.
        """
        updated: dict[str, Any] = {}
        outer, self._updated = self._updated, updated
        try:
            yield
        finally:
            self._updated = outer
        if isinstance(function, def_function.Function):
            updated = self._known.setdefault(function, updated) or updated
        if updated and _can_compare():
            self._after_step(updated)

    def _after_step(self, updated: dict[str, Any]) -> None:
        key = tuple(updated)
        weights = [(one.name, one.values[0]) for one in updated.values()]
        is_new = key not in self._steps
        if is_new:
            with tf.init_scope(), tf.device("CPU:0"):
                # Not `tf.Variable`, which the strategy would take charge of.
                self._steps[key] = ResourceVariable(0, dtype=tf.int64, trainable=False)
        label = f"popdist_weights_{list(self._steps).index(key)}"

        def compare() -> Any:
            return assert_equal_weights(self._collectives, weights, MESSAGE, label)

        if not tf.executing_eagerly():
            count = self._steps[key].assign_add(1)
            tf.cond(count == 1, compare, lambda: True)
        elif is_new:
            compare()


def _can_compare() -> bool:
    # In a graph of TensorFlow 1, nothing but the results that are asked for would run.
    return bool(tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function)
