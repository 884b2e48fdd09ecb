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

from popdist_tf.collectives.agreement import assert_equal_weights, digest
from popdist_tf.errors import AgreementError
from popdist_tf.versions import variable_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


# Stops an Estimator's training whose workers hold different weights after the first step.


_NAMED = 5


class CompareAfterFirstStep(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Compares the trained weights of all workers once, after the first step of a training.

    A sum over the workers of a number for each weight is as many times a worker's own number as
    there are workers, where they are equal. It works under every strategy.

    Args:
        strategy: The strategy of the training.
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self._names: list[str] = []
        self._differ: Any = None

    def begin(self) -> None:
        """Adds the comparison to the graph."""
        weights = tf.compat.v1.trainable_variables()
        if not weights:
            return
        self._names = [weight.name for weight in weights]
        own = tf.stack([digest(getattr(one, "values", (one,))[0]) for one in weights])
        with self._strategy.scope():
            total = self._strategy.reduce(tf.distribute.ReduceOp.SUM, own, axis=None)
            self._differ = tf.not_equal(total, own * self._workers)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Compares, once.

        Raises:
            AgreementError: Weights differ; raised on all workers.
        """
        del run_values
        if self._differ is None:
            return
        differ, self._differ = run_context.session.run(self._differ), None
        if differ.any():
            names = [name for name, one in zip(self._names, differ, strict=True) if one]
            raise AgreementError(
                "PD413",
                "the workers hold different weights after the first step: each would train a "
                "model of its own",
                value=f"{len(names)} of {len(differ)} weights differ: {', '.join(names[:_NAMED])}",
                hint="build the optimizer alike on all workers, inside of the model function, and "
                "update weights through it alone (optimizer.apply_gradients)",
            )

    @property
    def _workers(self) -> int:
        # Each instance hands in one value, whatever its local replicas.
        extended = self._strategy.extended
        return int(self._strategy.num_replicas_in_sync // getattr(extended, "replicas_per_step", 1))


# Stops a training whose instances hold different weights after the first step.


_KERAS_MESSAGE = (
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
        return assert_equal_weights(self._collectives, weights, _KERAS_MESSAGE)
