"""The rows that the instances train on: whether they are others on each, and as many.

The program divides the data over the instances, and no strategy over Horovod does it again. Where a
program forgets to, every update counts the same samples once for each instance, and nothing fails.
Arrays are compared when ``fit`` begins, as each instance may shuffle them in its own way. Batches
are compared in two steps (`first_steps`): those that are the same in both are a benchmark's.

A mean over instances counts the rows of small batches more than one process does. How large the
last batch of a data set is, is known only when it is read. So each step counts its rows, and the
counts are compared where the instances compare something else: after an epoch, before a call of
``train_on_batch``, and at the end of an Estimator's training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow.compat.v2 as tf
from tensorflow.python.distribute.values import DistributedValues
from tensorflow.python.eager import context

from popdist import agreement
from popdist_tf.checks import ROWS, SIZES, warn
from popdist_tf.hooks import before_steps
from popdist_tf.replica_state import ReplicaState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from popdist_tf.collectives.host import HostCollectives

_SAMPLED = 64
_DEFAULT_BATCH = 32  # of Keras
_COUNTED = "_popdist_counted_rows"
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # spreads the numbers of steps over 64 bits


def warn_of_equal_rows(instances: int) -> None:
    """Warns that the instances train on the same rows."""
    warn(
        ROWS,
        f"all {instances} instances train on the same rows, so each sample counts "
        f"{instances} times. Give each instance rows of its own, with "
        "dataset.shard(popdist.getNumInstances(), popdist.getInstanceIndex()) for example.",
        "Where equal rows are meant",
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
        warn_of_equal_rows(collectives.size)


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


# How many rows batches have.


def warn_of_sizes(says: str) -> None:
    """Warns that batches have other sizes on some instances.

    Args:
        says: Which sizes.
    """
    warn(
        SIZES,
        "the instances have batches of different sizes, and the mean over instances counts "
        f"rows of small batches more than one process does ({says}). Give all "
        "instances as many rows, or drop the last batch (drop_remainder=True).",
        "Where this is meant",
    )


def sizes_of_fit(fit: Mapping[str, Any]) -> str:
    """How many rows the batches of a ``fit`` have, in words, as far as it is known.

    Args:
        fit: The arguments of ``fit``.
    """
    data = fit.get("x")
    if isinstance(data, tf.data.Dataset):
        parts = tf.nest.flatten(data.element_spec, expand_composites=True)
        shapes = [one.shape for one in parts if getattr(one, "shape", None)]
        return f"batches of {shapes[0][0]} rows" if shapes and shapes[0].rank else "unknown"
    shapes = [one.shape for one in tf.nest.flatten(data) if getattr(one, "shape", None)]
    if not shapes:
        return "unknown"
    rows = int(shapes[0][0] * (1 - (fit.get("validation_split") or 0)))
    batch = fit.get("batch_size") or _DEFAULT_BATCH
    return f"batches of {min(batch, rows)} rows, and at last {rows % batch or min(batch, rows)}"


def rows_of_batch(batch: Any) -> Any:
    """How many rows a batch has: an integer or a scalar tensor, and None where it has none.

    Args:
        batch: A structure of arrays or tensors.
    """
    for one in tf.nest.flatten(batch):
        if isinstance(one, tf.RaggedTensor):
            return one.nrows()
        if isinstance(one, tf.SparseTensor):
            return one.dense_shape[0]
        shape = getattr(one, "shape", None)
        # The rank may be unknown, and then there is nothing to count.
        if shape is None or not (shape.rank if isinstance(shape, tf.TensorShape) else len(shape)):
            continue
        size = tf.compat.dimension_value(shape[0])
        return tf.shape(one)[0] if size is None else size
    return None


def count_of_step(steps: Any, rows: Any) -> list[Any]:
    """The addend of a step to a count: one step, its rows, and a number that changes with them.

    Args:
        steps: The steps before.
        rows: Of the step.
    """
    return [1, rows, rows * (steps * _ODD + 1)]


def count_in_words(count: Iterable[int]) -> str:
    """A count of steps, as a text that differs where a step had other rows."""
    steps, rows, digest = count
    return f"{rows} rows in {steps} steps ({digest & 0xFFFF:04x})"


class CountedRows:
    """The rows of a model's steps since they were last compared, for each local replica."""

    def __init__(self) -> None:
        self._states: dict[Any, ReplicaState] = {}

    def note(self, batch: Any) -> None:
        """Counts the rows of a step that is being built or run.

        Args:
            batch: Of one replica.
        """
        rows = rows_of_batch(batch)
        replica = tf.distribute.get_replica_context()
        if rows is None or replica is None:
            return
        number = replica._replica_id_in_sync_group
        with tf.device("CPU:0"):
            if number not in self._states:
                self._states[number] = ReplicaState(lambda: tf.zeros(3, tf.int64), "rows")
            state = self._states[number]
            state.assign_add(count_of_step(state.read_value()[0], tf.cast(rows, tf.int64)))

    def take(self, rank: int) -> Mapping[str, str]:
        """The counts, as facts that instances compare; they begin again.

        Args:
            rank: Of this instance.
        """
        found = [tuple(one.numpy().tolist()) for one in self._states.values()]
        for one in self._states.values():
            one.assign([0, 0, 0])
        if not found:
            return {}
        is_same = len(set(found)) == 1
        other = f"other rows on each replica of instance {rank}"
        return {"rows": count_in_words(found[0]) if is_same else other}


def count_rows(model: Any) -> None:
    """Makes the steps of a model count their rows; safe to call again.

    Args:
        model: A model of Keras that is about to be trained.
    """
    if not hasattr(model, _COUNTED):
        setattr(model, _COUNTED, CountedRows())
        before_steps(model, counted_rows(model).note)


def counted_rows(model: Any) -> CountedRows:
    """What the steps of a model have counted; nothing for a model without such steps.

    Args:
        model: A model of Keras.
    """
    return getattr(model, _COUNTED, None) or CountedRows()
