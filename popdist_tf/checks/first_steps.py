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

import numpy as np
import tensorflow.compat.v2 as tf
from tensorflow.core.framework import attr_value_pb2

from popdist.checks import is_enabled
from popdist_tf.checks.rows import rows_of, warn_of_equal_rows
from popdist_tf.collectives.agreement import digests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from popdist.checks import Check
    from popdist_tf.collectives.agreement import Rows

_STEPS = 2  # whose rows are compared


@dataclass(frozen=True)
class Weights:
    """Weights that all instances compare in some steps.

    Attributes:
        steps: The numbers of the steps, from 1 on. They count in this process, unlike an
            optimizer's own count after resuming: all instances get to the comparison together.
        check: Which check it is.
        message: What to say of weights that differ; their names follow.
        values: Names and values, the same weights in the same order on every instance. The value
            of a weight may be a list, one value for each local replica.
    """

    steps: frozenset[int]
    check: Check
    message: str
    values: Sequence[tuple[str, Any]]


class FirstSteps:
    """Compares rows and weights of all instances inside of the first steps.

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
        self._count = _Count()
        self._before: int | None = None  # the digest of rows that all instances had in a step

    def compare(self, batch: Any, weights: Sequence[Weights] = (), announced: Any = None) -> Any:
        """Compares in a step that is being built or run, if it is one of the first.

        Args:
            batch: Of this instance, in the same structure on every instance.
            weights: The weights, each with its steps.
            announced: `uneven_data.AnnouncedSteps`, for a step that is announced before it
                compares; None for none.

        Returns:
            A boolean scalar that exists when all is compared, and nothing has failed.
        """

        def compare(number: Any) -> Any:
            if announced is None:
                return self._in_step(batch, weights, number)
            # Where a comparison fails, TensorFlow starts no branch any more. So of comparisons side
            # by side, one that has begun on another instance would wait there for ever.
            with tf.control_dependencies([announced.announce()]):
                return self._in_step(batch, weights, number)

        last = max([self._first + 1, *(max(one.steps) for one in weights)])
        also = None if announced is None else announced.is_wanted
        return self._count.in_step(last, compare, also)

    def _in_step(self, batch: Any, weights: Sequence[Weights], number: Any) -> Any:
        rows = rows_of(batch)
        weights = [one for one in weights if one.values and is_enabled(one.check)]
        due = set().union(*(one.steps for one in weights))
        due |= {self._first, self._first + 1} if rows else set()
        if not due:
            return tf.constant(value=True)
        if due == {*range(1, len(due) + 1)}:  # those that are counted
            return self._compare(rows, weights, number)
        is_due = tf.reduce_any(tf.equal(number, sorted(due)))
        return tf.cond(is_due, lambda: self._compare(rows, weights, number), lambda: True)

    def _compare(self, rows: list[Any], weights: list[Weights], number: Any) -> Any:
        values = list(rows)
        parts: list[tuple[Weights, list[tuple[str, int, int]]]] = []
        for one in weights:
            places = []
            for name, value in one.values:
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
        with tf.control_dependencies([check]):
            return tf.constant(value=True)

    def _compare_rows(self, step: int, found: Any) -> None:
        """Warns of rows that are the same everywhere in two steps, and not in these steps alike."""
        if not found.shape[1] or step not in (self._first, self._first + 1):
            return
        own = hash(found[0].tobytes()) if (found == found[0]).all() else None
        before, self._before = self._before, own
        is_second = step == self._first + 1
        if is_second and None not in (own, before) and own != before and not self._collectives.rank:
            warn_of_equal_rows(self._collectives.size)


def _differing(one: Weights, found: Any, places: Iterable[tuple[str, int, int]]) -> str:
    """What to say of weights that differ between instances or replicas; no text if none does."""
    names = [name for name, start, end in places if (found[:, start:end] != found[0, start]).any()]
    if not names:
        return ""
    said = " ".join([one.message, *dict.fromkeys(names)])
    if one.check.stops:
        return said
    print(said, file=sys.stderr, flush=True)  # noqa: T201 - as TensorFlow's own operation does
    return ""


class FirstElements:
    """Compares the first two elements of an infeed queue, after the steps that took them."""

    def __init__(self) -> None:
        self._notes, self._comparisons = _Count(), _Count()
        self._seen: list[int] = []  # digests
        self._has_warned = False

    def note(self, element: Any) -> Any:
        """Notes an element that is taken, if it is one of the first two.

        Args:
            element: In the same structure on every instance.

        Returns:
            An operation; None for an element without rows.
        """
        rows = rows_of(element)

        def keep(own: Any) -> bool:
            self._seen.append(int(own))
            return True

        def noted(_: Any) -> Any:
            return tf.numpy_function(keep, [digests([digests(rows)])[0]], tf.bool)

        return self._notes.in_step(_STEPS, noted) if rows else None

    def compare(self, collectives: Rows, label: str | None = None) -> Any:
        """An operation that compares after each of the first two steps.

        Args:
            collectives: What gathers the instances' rows.
            label: By which the instances' comparisons find each other.
        """

        def own(number: Any) -> Any:
            return np.array([[*self._seen[:number], 0, 0][:_STEPS]], np.int64)

        def say(found: Any) -> bool:
            first, second = found[0]
            is_equal = (found == found[0]).all() and second not in (0, first)
            if is_equal and not (collectives.rank or self._has_warned):
                self._has_warned = True
                warn_of_equal_rows(collectives.size)
            return True

        def look(_: Any) -> Any:
            # By the number of the elements that have been noted, TensorFlow orders the two.
            mine = tf.numpy_function(own, [self._notes.size()], tf.int64)
            mine = tf.ensure_shape(mine, [1, _STEPS])
            return tf.numpy_function(say, [collectives.allgather(mine, label)], tf.bool)

        return self._comparisons.in_step(_STEPS, look)


class _Count:
    """Counts steps, in one branch that later steps do not take."""

    def __init__(self) -> None:
        self._counted: Any = None
        self._is_over = False  # of eager steps

    def size(self) -> Any:
        """How many steps have acted, as an int32 scalar."""
        if self._counted is None:
            # A queue: a variable would have to be initialised in a session, and would be in the
            # program's checkpoints.
            with tf.init_scope(), tf.device("CPU:0"):
                self._counted = tf.queue.FIFOQueue(-1, [tf.bool], [()], name="popdist_compared")
        return self._counted.size()

    def in_step(self, last: int, act: Callable[[Any], Any], also: Any = None) -> Any:
        """Counts a step that is being built or run, and acts in the first ones.

        Args:
            last: The number of the last step that acts.
            act: Called with the number of the step from 1 on, an int32 scalar; returns what the
                step waits for.
            also: A boolean scalar, by which later steps act too; None for none.

        Returns:
            A boolean scalar that exists when the step has acted.
        """
        if self._is_over and also is None and tf.executing_eagerly():
            return True
        with tf.device("CPU:0"):
            count = self.size()

            def take() -> Any:
                with tf.control_dependencies([act(count + 1)]):
                    noted = self._counted.enqueue(True)  # noqa: FBT003 - the element
                with tf.control_dependencies([noted]):
                    return tf.constant(value=True)

            is_due = count < last
            if tf.executing_eagerly():
                self._is_over = not is_due
            if also is not None:
                is_due |= also
            return in_one_operation(tf.cond(is_due, take, lambda: tf.constant(value=True)))


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
