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
from popdist.checks import is_enabled
from popdist_tf.checks import ROWS
from popdist_tf.collectives.agreement import digest, digests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_tf.collectives.agreement import Rows
    from popdist_tf.collectives.host import HostCollectives

_SAMPLED = 64
_STEPS = 2


def warn(instances: int) -> None:
    """Says that the instances train on the same rows; Python shows an equal warning once."""
    if not is_enabled(ROWS):
        return
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


class FirstElements:
    """Compares the first two elements of an infeed queue, after the steps that took them."""

    def __init__(self) -> None:
        self._seen = remembered(tf.int64)
        self._done = remembered(tf.bool)

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


def remembered(dtype: Any) -> Any:
    """An empty queue without a limit: what comparisons remember between steps.

    A variable would have to be initialised in a session, and would be in the program's checkpoints.

    Args:
        dtype: The type of its elements, which are scalars.
    """
    with tf.init_scope(), tf.device("CPU:0"):
        return tf.queue.FIFOQueue(-1, [dtype], [()], name="popdist_compared")


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
