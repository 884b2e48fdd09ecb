"""Comparisons inside of the first steps of a training, in one branch that later steps do not take.

A step is an eager one, one of a function that TensorFlow builds, or a run of a session.

A step that TensorFlow builds takes longer to build than to run, so a comparison is four operations,
whatever it compares: the digests of rows and weights, their exchange, the comparison of all
instances' digests in Python, and an assertion.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf
from tensorflow.core.framework import attr_value_pb2

from popdist.checks import is_enabled
from popdist_tf.collectives.agreement import digests
from popdist_tf.guards.equal_data import remembered, rows_of, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from popdist.checks import Check
    from popdist_tf.collectives.agreement import Rows


class FirstSteps:
    """Counts steps for all comparisons of a step, in one branch that later steps do not take."""

    def __init__(self) -> None:
        self._counted: Any = None
        self._is_over = False  # of eager steps

    def in_step(self, last: int, compare: Callable[[Any], Any], also: Any = None) -> Any:
        """Counts a step that is being built or run, and compares in the first ones.

        Args:
            last: The number of the last step in which there is something to compare.
            compare: Called with the number of the step from 1 on, an int32 scalar; returns what
                the step waits for, or None.
            also: A boolean scalar, by which later steps call ``compare`` too; None for none.

        Returns:
            A boolean scalar that exists when all is compared.
        """
        if self._is_over and also is None and tf.executing_eagerly():
            return True
        with tf.device("CPU:0"):
            if self._counted is None:
                self._counted = remembered(tf.bool)
            count = self._counted.size()

            def take() -> Any:
                made = compare(count + 1)
                with tf.control_dependencies([] if made is None else [made]):
                    noted = self._counted.enqueue(True)  # noqa: FBT003 - the element
                with tf.control_dependencies([] if noted is None else [noted]):
                    return tf.constant(value=True)

            is_due = count < last
            if tf.executing_eagerly():
                self._is_over = not is_due
            if also is not None:
                is_due |= also
            return in_one_operation(tf.cond(is_due, take, lambda: tf.constant(value=True)))


def one_after_another(comparisons: Iterable[Callable[[], Any]]) -> Any:
    """Builds or runs comparisons, each of which begins when the one before it has ended.

    Where one fails, TensorFlow starts no branch any more. So of comparisons side by side, one that
    has begun on another instance would wait there for ever.

    Args:
        comparisons: Each returns a tensor that exists when it has ended.

    Returns:
        The tensor of the last one.
    """
    before: Any = None
    for one in comparisons:
        with tf.control_dependencies([] if before is None else [before]):
            before = one()
    return before


def in_one_operation(result: Any) -> Any:
    """The result of a branch that TensorFlow does not divide into operations of the step.

    Else each of them takes part in each step, if only to find out that it does not run.
    """
    if tf.executing_eagerly() or len(tf.config.list_logical_devices()) > 1:
        return result  # an operation is on one device, and weights are on several
    operation = result.op
    while operation.type == "Identity":
        operation = operation.inputs[0].op
    if operation.type in ("If", "StatelessIf"):
        operation._set_attr("_lower_using_switch_merge", attr_value_pb2.AttrValue(b=False))
    return result


@dataclass(frozen=True)
class Compared:
    """Weights that all instances compare in some steps.

    Attributes:
        steps: The numbers of the steps, from 1 on. They count in this process, unlike an
            optimizer's own count after resuming: all instances get to the comparison together.
        check: Which check it is.
        message: What to say of weights that differ; their names follow.
        weights: Names and values, the same weights in the same order on every instance. The value
            of a weight may be a list, one value for each local replica.
    """

    steps: frozenset[int]
    check: Check
    message: str
    weights: Sequence[tuple[str, Any]]


class StepComparison:
    """Compares rows and weights of all instances inside of steps.

    Args:
        collectives: What gathers the instances' rows.
        label: By which the instances' comparisons find each other where their graphs may differ;
            None for their order.
        first: The number of the first of the two steps whose rows are compared, from 1 on.
    """

    def __init__(self, collectives: Rows, label: str | None, first: int = 1) -> None:
        self._collectives = collectives
        self._label = label
        self._first = first
        self._before: int | None = None  # the digest of rows that all instances had in a step

    def last_step(self, compared: Iterable[Compared] = ()) -> int:
        """The number of the last step in which there is something to compare.

        Args:
            compared: The weights.
        """
        return max([self._first + 1, *(max(one.steps) for one in compared)])

    def in_step(self, batch: Any, number: Any, compared: Sequence[Compared] = ()) -> Any:
        """Compares, if there is something to compare in the step that is being built or run.

        Comparisons from the first step on need no condition: `FirstSteps` ends them.

        Args:
            batch: Of this instance, in the same structure on every instance.
            number: Of the step, from 1 on; an int32 scalar.
            compared: The weights.

        Returns:
            A boolean scalar that exists when all is compared, and nothing has failed.
        """
        rows = rows_of(batch)
        compared = [one for one in compared if one.weights and is_enabled(one.check)]
        due = set().union(*(one.steps for one in compared))
        due |= {self._first, self._first + 1} if rows else set()
        if not due:
            return tf.constant(value=True)
        if due == {*range(1, len(due) + 1)}:
            return self._compare(rows, compared, number)
        is_due = tf.reduce_any(tf.equal(number, sorted(due)))
        return tf.cond(is_due, lambda: self._compare(rows, compared, number), lambda: True)

    def _compare(self, rows: list[Any], compared: list[Compared], number: Any) -> Any:
        values = list(rows)
        parts: list[tuple[Compared, list[tuple[str, int, int]]]] = []
        for one in compared:
            places = []
            for name, value in one.weights:
                held = value if isinstance(value, (list, tuple)) else [value]
                places.append((name, len(values), len(values) + len(held)))
                values += held
            parts.append((one, places))

        def differing(step: Any, found: Any) -> str:
            here = int(step)
            self._compare_rows(here, found[:, : len(rows)])
            return "\n".join(
                said
                for one, places in parts
                if here in one.steps and (said := _differing(one, found, places))
            )

        with tf.device("CPU:0"):
            found = self._collectives.allgather(digests(values)[tf.newaxis], self._label)
            said = tf.numpy_function(differing, [number, found], tf.string)
            check = tf.debugging.Assert(tf.equal(said, ""), [said])
        with tf.control_dependencies([] if check is None else [check]):
            return tf.constant(value=True)

    def _compare_rows(self, step: int, found: Any) -> None:
        """Warns of rows that are the same everywhere in two steps, and not in these steps alike."""
        if not found.shape[1] or step not in (self._first, self._first + 1):
            return
        own = hash(found[0].tobytes()) if (found == found[0]).all() else None
        before, self._before = self._before, own
        is_second = step == self._first + 1
        if is_second and None not in (own, before) and own != before and not self._collectives.rank:
            warn(self._collectives.size)


def _differing(one: Compared, found: Any, places: Iterable[tuple[str, int, int]]) -> str:
    """What to say of weights that differ between instances or replicas; no text if none does."""
    names = [name for name, start, end in places if (found[:, start:end] != found[0, start]).any()]
    if not names:
        return ""
    said = " ".join([one.message, *dict.fromkeys(names)])
    if one.check.stops:
        return said
    print(said, file=sys.stderr, flush=True)  # noqa: T201 - as TensorFlow's own operation does
    return ""
