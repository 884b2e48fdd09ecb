"""What instances compare in the first steps of a strategy: weights, rows, and whether they reduce.

Gradients that are reduced keep equal weights equal, and different weights different: nothing else
would show it. What makes weights differ: values that one worker has loaded and not broadcast,
a learning rate or another option of the optimizer that depends on the rank.

The comparison is part of the first step itself, as a step may be one of many in a compiled loop; in
a graph of TensorFlow 1, the step's results depend on it. The wrapper of `popdist_tf.keras` makes
the same comparison before the second update, as a model without an input shape gets the first
worker's weights after its first step; an Estimator makes it after its first step.
"""

from __future__ import annotations

import copy
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf
from tensorflow.python.distribute.values import DistributedValues
from tensorflow.python.eager import def_function

from popdist_tf.checks import EXCHANGE, STATE, VARIABLES, warn
from popdist_tf.checks.first_steps import FirstElements, FirstSteps, Weights
from popdist_tf.checks.rows import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from popdist_tf.collectives.agreement import Rows

_NAMED = 5


DIFFERENT = (
    "[PD007] the instances hold different weights after the first step: each would train a model "
    "of its own. {} The weights that differ:"
)
_SAME_SETTINGS = DIFFERENT.format(
    "Give the optimizer the same settings (the learning rate, say) on all instances, and load "
    "weights on all of them."
)
_WRITTEN_APART = (
    "[PD416] each replica keeps a value of its own in variables that are not aggregated: a read "
    "returns the first one of the instance, and instances may diverge by them. Give the variables "
    "an aggregation (tf.VariableAggregation.MEAN, say), or synchronization ON_READ where they are "
    "to differ. The variables:"
)


class StepGuard:
    """Compares, in the first step of a strategy that updates them, the weights that it updates.

    Args:
        collectives: What gathers the instances' rows; None for an instance alone.
    """

    def __init__(self, collectives: Rows | None) -> None:
        self._collectives = collectives
        self._updated: dict[str, Any] | None = None  # inside of a step
        self._reduces = False
        self._first_update = 1
        self._exchanged = -1  # sums and gathers until the end of the last step; -1 before a step
        self._has_warned = False
        self._unseen: dict[str, Any] = {}  # by a step that a session will run
        self._unseen_batch: Any = ()
        self._comparisons: dict[tuple[str, Any], FirstSteps] = {}
        self._has_rows = False  # the step that is being built or run
        # Data that no argument of a step has: of infeed queues, and of closures by their gradients.
        self._infeeds: weakref.WeakKeyDictionary[Any, FirstElements] = weakref.WeakKeyDictionary()
        self._taken: weakref.WeakSet[Any] = weakref.WeakSet()  # from these queues, in this step
        self._shapes: set[tuple[int, ...]] = set()  # of weights, by which gradients are known
        # TensorFlow builds a function once, and what it updates is seen then alone.
        self._known: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()

    @property
    def collectives(self) -> Rows | None:
        """What gathers the instances' rows; None for an instance alone."""
        return self._collectives

    def __deepcopy__(self, memo: dict[int, Any]) -> StepGuard:
        """A guard that has seen no step; Estimators copy strategies, variables cannot be copied."""
        return StepGuard(copy.deepcopy(self._collectives, memo))

    def note(self, variable: Any, *, by_each_replica: bool = False) -> None:
        """Takes notice of an update.

        Args:
            variable: A variable of the strategy.
            by_each_replica: Whether each replica updates its own component, by its own value.
        """
        is_seen = by_each_replica or getattr(variable, "trainable", False)
        if self._updated is not None and is_seen:
            # Names of variables are not unique, and variables cannot be compared.
            self._updated[variable.values[0]._unique_id] = variable

    def note_accumulation(self, steps: int) -> None:
        """Takes notice of weights that are updated after so many steps only."""
        self._first_update = max(self._first_update, steps)

    def note_reduction(self) -> None:
        """Takes notice of gradients that the step reduces by itself."""
        self._reduces = True

    def next_of_infeed(self, queue: Any, element: Any) -> Any:
        """Notes the first elements of an infeed queue: a step does not take them as arguments.

        Args:
            queue: The queue.
            element: The next element.

        Returns:
            The element, which exists only when it has been noted.
        """
        if self._collectives is None or self._updated is None:
            return element
        self._has_rows = True
        if queue not in self._infeeds:
            self._infeeds[queue] = FirstElements()
        self._taken.add(queue)
        noted = self._infeeds[queue].note(element)
        return element if noted is None or tf.executing_eagerly() else _after([noted], element)

    def _compare_infeeds(self, *, in_session: bool = False) -> list[Any]:
        """Compares the first elements that a step has taken, when it has updated weights."""
        assert self._collectives is not None  # noqa: S101 - nothing is noted without
        taken, self._taken = self._taken, weakref.WeakSet()
        return [
            first.compare(self._collectives, None if in_session else f"popdist_infeed_{number}")
            for number, (queue, first) in enumerate(self._infeeds.items())
            if queue in taken
        ]

    def note_weight(self, variable: Any) -> None:
        """Takes notice of a new variable that the strategy trains."""
        if variable.shape.rank:
            self._shapes.add(tuple(variable.shape.as_list()))

    def before_reduction(self, values: Sequence[Any]) -> list[Any]:
        """Compares the gradients of steps without rows among their arguments, from the second on.

        Such a step has its data from elsewhere. Equal rows make equal gradients. Optimizers and
        programs reduce gradients in several ways, so gradients are known by their shapes.

        Args:
            values: Of this instance, before they are reduced together.

        Returns:
            The values; one of them exists only when it has been compared.
        """
        values = list(values)
        if self._collectives is None or self._updated is None or self._has_rows:
            return values
        # One gradient is enough. The backward pass computes the last layer's first.
        for number in reversed(range(len(values))):
            if self._is_gradient(values[number]):
                self._has_rows = True
                values[number] = self._compared(values[number])
                break
        return values

    def _rows_of(self, arguments: Any) -> list[Any]:
        """The arguments of a step that hold rows; those with weights' shapes are gradients."""
        rows = rows_of(arguments)
        return [] if all(map(self._is_gradient, rows)) else rows

    def _is_gradient(self, value: Any) -> bool:
        held = _of_first_replica(value)
        if isinstance(held, tf.IndexedSlices):
            return True
        is_real = isinstance(held, tf.Tensor) and held.dtype.is_floating and held.shape.rank
        return bool(is_real) and tuple(held.shape.as_list()) in self._shapes

    def _compared(self, gradient: Any) -> Any:
        # By the shape, as a strategy may train several models.
        shape = str(getattr(_of_first_replica(gradient), "shape", None))
        compared = self._first_steps("closures", shape, first=2).compare(gradient)
        return gradient if tf.executing_eagerly() else _after([compared], gradient)

    @contextmanager
    def step(self, function: Any, batch: Any = (), *, compares: bool = True) -> Iterator[None]:
        """Surrounds the code that builds, or runs, a step on all replicas.

        Args:
            function: What the replicas are given to run.
            batch: Its arguments.
            compares: Whether the strategy reduces the step's updates.
        """
        if self._collectives is None:
            yield
            return
        updated: dict[str, Any] = {}
        outer, self._updated = self._updated, updated
        if outer is None:
            self._has_rows = bool(self._rows_of(batch))
            self._taken = weakref.WeakSet()
        before = self._exchanged if self._exchanged >= 0 else self._exchanges()
        try:
            yield
        finally:
            self._updated = outer
            self._exchanged = self._exchanges()
        # A function that was built before builds no exchange again.
        is_silent = bool(updated) and before == self._exchanged
        if isinstance(function, def_function.Function):
            updated = self._known.setdefault(function, updated) or updated
        if outer is not None:  # a step inside of a step, which may be a branch that is not taken
            outer.update(updated)
            self._exchanged = before
        elif not (compares or self._reduces):
            if is_silent:
                self._warn(updated)
        elif updated:
            if _runs_by_itself():
                self._after_step(updated, batch)
            else:
                self._unseen.update(updated)
                self._unseen_batch = batch

    def _exchanges(self) -> int:
        return sum(getattr(self._collectives, "built", {}).values())

    def _warn(self, updated: dict[str, Any]) -> None:
        """Says once that a step trains without an exchange; the program may want just that."""
        trained = [one.name for one in updated.values() if one.trainable]
        if trained and not self._has_warned:
            self._has_warned = True
            warn(
                EXCHANGE,
                "nothing reduces the gradients of this step: each instance trains a model of its "
                f"own ({', '.join(trained[:_NAMED])}). Create the strategy without "
                "add_ipu_cross_replica_reductions=False, or sum the gradients with "
                "cross_replica_ops.",
            )

    def _after_step(self, updated: dict[str, Any], batch: Any) -> None:
        first = self._first_steps("step", tuple(updated))
        self._compare(first, batch, updated, {self._first_update})
        self._compare_infeeds()

    def _first_steps(self, kind: str, key: Any, first: int = 1) -> FirstSteps:
        assert self._collectives is not None  # noqa: S101 - nothing is noted without
        if (kind, key) not in self._comparisons:
            number = sum(known == kind for known, _ in self._comparisons)
            label = f"popdist_{kind}_{number}"
            self._comparisons[kind, key] = FirstSteps(self._collectives, label, first)
        return self._comparisons[kind, key]

    def _compare(
        self, first: FirstSteps, batch: Any, updated: dict[str, Any], steps: set[int]
    ) -> Any:
        apart, trained = _parted(updated)
        weights = [
            Weights(frozenset({1}), VARIABLES, _WRITTEN_APART, apart),
            Weights(frozenset(steps), STATE, _SAME_SETTINGS, trained),
        ]
        return first.compare(self._rows_of(batch), weights)

    def in_session(self, build: Callable[[], Any]) -> Any:
        """Builds a step in a graph of TensorFlow 1, where only what results need is run.

        Args:
            build: Builds the step, and returns its results.

        Returns:
            The results, which exist only when the weights have been compared.
        """
        self._unseen.clear()
        results = build()
        updated, self._unseen = self._unseen, {}
        batch, self._unseen_batch = self._unseen_batch, ()
        flat = _components(results)
        if not updated or not flat or self._collectives is None:
            return results
        # A run may make many steps, so weights that are updated after several are compared before.
        steps = {2**i for i in range(self._first_update.bit_length())} | {self._first_update}
        with tf.control_dependencies(flat):
            infeeds = self._compare_infeeds(in_session=True)
        with tf.control_dependencies([*flat, *infeeds]):
            first = FirstSteps(self._collectives, None)
            compared = self._compare(first, batch, updated, steps)
        return _after([*infeeds, compared], results)


def _of_first_replica(value: Any) -> Any:
    return value.values[0] if isinstance(value, DistributedValues) else value


def _parted(updated: dict[str, Any]) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """Variables that are not trained, and weights."""
    parts: tuple[list[tuple[str, Any]], list[tuple[str, Any]]] = ([], [])
    for one in updated.values():
        if "_gradient_accumulator" in one.name:
            continue  # Keras 3 reads what a replica has accumulated on that replica alone
        parts[bool(one.trainable)].append((one.name, list(one.values)))
    return parts


def _components(results: Any) -> list[Any]:
    """The tensors and operations of a structure with values for each replica."""
    flat = tf.nest.flatten(results)
    held = [one.values if isinstance(one, DistributedValues) else (one,) for one in flat]
    return [one for values in held for one in values if _is_of_graph(one)]


def _after(operations: list[Any], results: Any) -> Any:
    """The same results, which exist only when operations have run."""

    def after(one: Any) -> Any:
        if isinstance(one, tf.Operation):
            return tf.group(one, *operations)
        if _is_of_graph(one):
            with tf.control_dependencies(operations):
                return tf.identity(one)
        if isinstance(one, tf.IndexedSlices):
            return tf.IndexedSlices(after(one.values), one.indices, one.dense_shape)
        if isinstance(one, DistributedValues) and any(map(_is_of_graph, one.values)):
            return type(one)(tuple(map(after, one.values)))
        return one

    return tf.nest.map_structure(after, results)


def _is_of_graph(one: Any) -> bool:
    return isinstance(one, (tf.Operation, tf.Tensor))


def _runs_by_itself() -> bool:
    # In a graph of TensorFlow 1, nothing but the results that are asked for would run.
    return bool(tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function)
