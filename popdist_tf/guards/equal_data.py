"""A warning where all instances of a job train on the same rows.

The program divides the data over the instances, and no strategy over Horovod does it again. Where a
program forgets to, every update counts the same samples once for each instance, and nothing fails.
Arrays are compared when ``fit`` begins, as each instance may shuffle them in its own way. Batches
are compared in two steps: those that are the same in both steps are a benchmark's.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow.compat.v2 as tf
from tensorflow.python.distribute.values import DistributedValues
from tensorflow.python.eager import context

from popdist import agreement
from popdist_tf.collectives.agreement import digest, digests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_tf.collectives.agreement import Rows
    from popdist_tf.collectives.host import HostCollectives

_SAMPLED = 64
_STEPS = 2


def warn(instances: int) -> None:
    """Says that the instances train on the same rows; Python shows an equal warning once."""
    warnings.warn(
        f"[PD418] all {instances} instances train on the same rows, so each sample counts "
        f"{instances} times. Give each instance rows of its own, with "
        "dataset.shard(popdist.getNumInstances(), popdist.getInstanceIndex()) for example. Where "
        r"equal rows are meant: warnings.filterwarnings('ignore', message=r'\[PD418\]').",
        stacklevel=1,
    )


def compare_arrays(collectives: HostCollectives, data: Any) -> None:
    """Warns where all instances hand the same arrays to ``fit``; every instance must call it.

    Some rows of each array are compared. Rows that are all alike are a benchmark's.

    Args:
        collectives: The job's collectives.
        data: A structure of arrays and tensors; other kinds of data are left out.
    """
    rows = [_sampled(one) for one in tf.nest.flatten(data) if _has_rows(one)]
    mine = 0
    if any((one != one[:1]).any() for one in rows):
        parts = [f"{one.dtype}{one.shape}{agreement.digest(one.tobytes())}" for one in rows]
        mine = int(agreement.digest("".join(parts).encode())[:15], 16)
    with tf.init_scope(), context.eager_mode():
        found = collectives.allgather(tf.constant([mine], tf.int64)).numpy()
    if mine and (found == mine).all() and collectives.rank == 0:
        warn(collectives.size)


def _has_rows(one: Any) -> bool:
    is_tensor = isinstance(one, tf.Tensor) and hasattr(one, "numpy")
    held = (isinstance(one, np.ndarray) and one.dtype != object) or is_tensor
    return held and len(one.shape) > 0 and one.shape[0] > 1


def _sampled(one: Any) -> np.ndarray[Any, Any]:
    array = one if isinstance(one, np.ndarray) else one.numpy()
    chosen = np.linspace(0, len(array) - 1, min(len(array), _SAMPLED)).astype(int)
    return np.ascontiguousarray(array[chosen])


def rows_of(batch: Any) -> list[Any]:
    """The tensors of a structure that hold rows; scalars, such as a number of the step, hold none.

    Args:
        batch: A structure of tensors, and of values for each local replica.
    """
    flat = [
        part
        for one in tf.nest.flatten(batch)
        for part in (one.values if isinstance(one, DistributedValues) else (one,))
    ]
    # A program may have given the shape of slices as a list.
    flat = [[one.values, one.indices] if isinstance(one, tf.IndexedSlices) else one for one in flat]
    flat = [part for one in flat for part in tf.nest.flatten(one, expand_composites=True)]
    return [one for one in flat if isinstance(one, tf.Tensor) and _is_compared(one)]


def _is_compared(one: Any) -> bool:
    return one.shape.rank != 0 and one.dtype not in (tf.resource, tf.variant)


def content(rows: Sequence[Any]) -> Any:
    """An int64 scalar that changes with the content of tensors.

    Args:
        rows: At least one tensor.
    """
    return digest(digests(rows))


class EqualBatches:
    """Compares what the instances train on in the first two runs of a session.

    Args:
        collectives: What gathers the instances' rows.
        label: By which the instances' comparisons find each other; None for their order.
    """

    def __init__(self, collectives: Rows, label: str | None = None) -> None:
        self._collectives = collectives
        self._label = label
        self._seen: Any = None

    def in_session(self, batch: Any) -> Any:
        """An operation that compares when a session runs it, or one before it, for the first times.

        Args:
            batch: Of this instance, in the same structure on every instance.

        Returns:
            The operation; None for a batch without rows.
        """
        rows = rows_of(batch)
        if not rows:
            return None
        if self._seen is None:
            self._seen = _queue(_STEPS, tf.int64)
        seen = self._seen
        number = seen.size()

        def first() -> Any:
            own = content(rows)
            with tf.control_dependencies([seen.enqueue(tf.where(self._equal(own), own, 0))]):
                return tf.constant(value=True)

        def second() -> Any:
            own, before = content(rows), seen.dequeue()
            said = self._say(self._equal(own) & tf.not_equal(before, 0) & tf.not_equal(before, own))
            with tf.control_dependencies([said, before]):
                done = seen.enqueue_many(tf.stack([own, own]))
            with tf.control_dependencies([done]):
                return tf.constant(value=True)

        def skipped() -> Any:
            return tf.constant(value=True)

        return tf.cond(number < _STEPS, lambda: tf.cond(number < 1, first, second), skipped)

    def _equal(self, own: Any) -> Any:
        return _equal(self._collectives, own, self._label)

    def _say(self, condition: Any) -> Any:
        return _say(self._collectives, condition)


class FirstElements:
    """Compares the first two elements of an infeed queue, after the steps that took them."""

    def __init__(self) -> None:
        self._seen = _queue(_STEPS, tf.int64)
        self._done = _queue(1, tf.bool)

    def note(self, element: Any) -> Any:
        """Notes an element that is taken, if it is one of the first two.

        Args:
            element: In the same structure on every instance.

        Returns:
            An operation; None for an element without rows.
        """
        rows = rows_of(element)
        if not rows:
            return None
        is_wanted = tf.equal(self._done.size(), 0) & (self._seen.size() < _STEPS)

        def keep() -> Any:
            with tf.control_dependencies([self._seen.enqueue(content(rows))]):
                return tf.constant(value=True)

        return tf.cond(is_wanted, keep, lambda: tf.constant(value=True))

    def compare(self, collectives: Rows, label: str | None = None) -> Any:
        """An operation that compares once, when both elements have been taken.

        Args:
            collectives: What gathers the instances' rows.
            label: By which the instances' comparisons find each other.
        """
        is_due = tf.equal(self._done.size(), 0) & tf.equal(self._seen.size(), _STEPS)

        def look() -> Any:
            own = self._seen.dequeue_many(_STEPS)
            is_equal = _equal(collectives, own, label) & tf.not_equal(own[0], own[1])
            with tf.control_dependencies([_say(collectives, is_equal)]):
                done = self._done.enqueue(True)  # noqa: FBT003 - the element
            with tf.control_dependencies([done]):
                return tf.constant(value=True)

        return tf.cond(is_due, look, lambda: tf.constant(value=True))


def _queue(capacity: int, dtype: Any) -> Any:
    """What a comparison remembers in a session.

    A variable would need to be initialised, and would be in the program's checkpoints.
    """
    with tf.init_scope(), tf.device("CPU:0"):
        return tf.queue.FIFOQueue(capacity, [dtype], [()], name="popdist_batches_compared")


def _equal(collectives: Rows, own: Any, label: str | None) -> Any:
    rows = collectives.allgather(own[tf.newaxis], label)
    return tf.reduce_all(tf.equal(rows, rows[:1]))


def _say(collectives: Rows, condition: Any) -> Any:
    if collectives.rank:
        return condition

    def say() -> Any:
        said = tf.py_function(lambda: warn(collectives.size), [], [])
        with tf.control_dependencies(tf.nest.flatten(said)):
            return tf.constant(value=True)

    return tf.cond(condition, say, lambda: tf.constant(value=True))


class CompareBatches(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Compares what the workers of an Estimator train on, in the first two steps of a training.

    Args:
        strategy: The strategy of the training.
        own: The content of this worker's batch.
    """

    def __init__(self, strategy: Any, own: Any) -> None:
        self._strategy = strategy
        self._own = own
        self._seen: list[int] = []
        self._given: Any = None
        self._total: Any = None

    def begin(self) -> None:
        """Adds the comparison to the graph."""
        self._given = tf.compat.v1.placeholder(tf.int64, [_STEPS])
        with self._strategy.scope():
            self._total = self._strategy.reduce(tf.distribute.ReduceOp.SUM, self._given, axis=None)

    def before_run(self, run_context: Any) -> Any:
        """Reads the content of the first two batches."""
        del run_context
        if len(self._seen) < _STEPS:
            return tf.compat.v1.train.SessionRunArgs(self._own)
        return None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Compares after the second step."""
        if len(self._seen) == _STEPS:
            return
        # So that a sum of all workers' contents does not overflow.
        self._seen.append(int(run_values.results) % 2**48)
        if len(self._seen) < _STEPS:
            return
        extended = self._strategy.extended
        replicas = getattr(extended, "replicas_per_step", 1)
        workers = self._strategy.num_replicas_in_sync // replicas
        total: Sequence[int] = run_context.session.run(self._total, {self._given: self._seen})
        is_equal = all(one == own * workers for one, own in zip(total, self._seen, strict=True))
        if is_equal and len(set(self._seen)) == _STEPS and extended.should_checkpoint:
            warn(workers)
