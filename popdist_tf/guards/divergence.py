"""Stops a training whose workers hold different weights after the first step.

Gradients that are reduced keep equal weights equal, and different weights different: nothing else
would show it. What makes weights differ: values that one worker has loaded or broadcast to nobody,
a learning rate or another option of the optimizer that depends on the rank.

All trainings are stopped by the same comparison: a number for each weight, that changes with any
bit of it, compared over the workers once. They differ in where the comparison has its place. Under
a strategy it is part of the first step itself, as a step may be one of many in a compiled loop
(`StepGuard`). The wrapper of `popdist_tf.keras` makes it before the second update, as a model
without an input shape gets the first worker's weights after its first step (`UpdateGuard`). An
Estimator makes it in its session, between two steps (`CompareAfterFirstStep`).
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

_NAMED = 5


class ComparedOnce:
    """Compares weights of all instances in the step of a certain number, inside of that step.

    Args:
        collectives: The job's collectives.
        step: The number, from 1 on. It counts in this process, unlike an optimizer's own count
            after resuming: all instances get to the comparison together.
        advice: What to do about weights that differ.
        label: By which the instances' comparisons find each other where their graphs may differ.
    """

    def __init__(
        self, collectives: HostCollectives, step: int, advice: str, label: str | None = None
    ) -> None:
        self._collectives = collectives
        self._step = step
        self._label = label
        self._message = (
            "[PD007] the instances hold different weights after the first step: each would train "
            f"a model of its own. {advice} The weights that differ:"
        )
        self._count: ResourceVariable | None = None

    def in_step(self, weights: Sequence[tuple[str, Any]]) -> None:
        """Counts a step that is being built or run, and compares in the right one.

        Args:
            weights: Names and values, the same weights in the same order on every instance.
        """
        if self._count is None:
            with tf.init_scope(), tf.device("CPU:0"):
                # Not `tf.Variable`, which a strategy would take charge of.
                self._count = ResourceVariable(0, dtype=tf.int64, trainable=False)
        number = self._count.assign_add(1)
        tf.cond(tf.equal(number, self._step), lambda: self._compare(weights), lambda: True)

    def _compare(self, weights: Sequence[tuple[str, Any]]) -> Any:
        return assert_equal_weights(self._collectives, weights, self._message, self._label)


class StepGuard:
    """Compares, in the first step of a strategy that updates them, the weights that it updates.

    Args:
        collectives: The job's collectives.
    """

    _ADVICE = (
        "Give the optimizer the same settings (the learning rate, say) on all instances, and load "
        "weights on all of them."
    )

    def __init__(self, collectives: HostCollectives) -> None:
        self._collectives = collectives
        self._updated: dict[str, Any] | None = None  # inside of a step
        self._steps: dict[tuple[str, ...], ComparedOnce] = {}
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
        if updated and _runs_by_itself():
            self._after_step(updated)

    def _after_step(self, updated: dict[str, Any]) -> None:
        key = tuple(updated)
        is_new = key not in self._steps
        if is_new:
            label = f"popdist_weights_{len(self._steps)}"
            self._steps[key] = ComparedOnce(self._collectives, 1, self._ADVICE, label)
        # An eager step of weights that were compared needs no more counting.
        if is_new or not tf.executing_eagerly():
            self._steps[key].in_step([(one.name, one.values[0]) for one in updated.values()])


def _runs_by_itself() -> bool:
    # In a graph of TensorFlow 1, nothing but the results that are asked for would run.
    return bool(tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function)


class UpdateGuard:
    """Compares the weights of an optimizer that reduces by itself, before its second update.

    Args:
        collectives: The job's collectives.
    """

    _ADVICE = (
        "Add popdist_tf.keras.callbacks.BroadcastGlobalVariablesCallback(0) to fit (and give the "
        "model an input shape where steps_per_execution is more than 1), or call "
        "popdist_tf.keras.broadcast_variables before a loop of your own."
    )

    def __init__(self, collectives: HostCollectives) -> None:
        self._compared = ComparedOnce(collectives, 2, self._ADVICE)

    def before_update(self, variables: Sequence[Any]) -> None:
        """Surveys an update that is about to be made.

        Args:
            variables: The weights of the update, the same ones on every instance.
        """
        self._compared.in_step([(variable_name(one), one) for one in variables])


class CompareAfterFirstStep(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Compares the trained weights of an Estimator's workers, after the first step of a training.

    A sum over the workers of a number for each weight is as many times a worker's own number as
    there are workers, where they are equal. It works under every strategy, with gRPC too.

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
                "PD007",
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
