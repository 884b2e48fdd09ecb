"""Compares how many rows the batches of the instances have, without an exchange of its own.

A mean over instances counts the rows of small batches more than one process does. How large the
last batch of a data set is, is known only when it is read. So each step counts its rows, and the
counts are compared where the instances compare something else: after an epoch, before a call of
``train_on_batch``, and at the end of an Estimator's training.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf

from popdist_tf.program_code import program_code
from popdist_tf.replica_state import ReplicaState

if TYPE_CHECKING:
    from collections.abc import Mapping

_COUNTED = "_popdist_counted_rows"
ODD = 0x9E3779B97F4A7C15 - (1 << 64)
"""Spreads the numbers of steps over 64 bits."""


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
                # Steps, rows, and a number that changes with the rows of any step.
                self._states[number] = ReplicaState(lambda: tf.zeros(3, tf.int64), "rows")
            state = self._states[number]
            rows = tf.cast(rows, tf.int64)
            state.assign_add(tf.stack([1, rows, rows * (state.read_value()[0] * ODD + 1)]))

    def take(self, rank: int) -> Mapping[str, str]:
        """What was counted, as facts that instances compare; the count begins again.

        Args:
            rank: Of this instance.
        """
        found = [tuple(one.numpy().tolist()) for one in self._states.values()]
        for one in self._states.values():
            one.assign([0, 0, 0])
        if not found:
            return {}
        if len(set(found)) > 1:
            return {"rows": f"other rows on each replica of instance {rank}"}
        steps, rows, digest = found[0]
        return {"rows": f"{rows} rows in {steps} steps ({digest & 0xFFFF:04x})"}


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


def count_rows(model: Any) -> None:
    """Makes the steps of a model count their rows; safe to call again.

    Args:
        model: A model of Keras that is about to be trained.
    """
    if hasattr(model, _COUNTED):
        return
    counted, known = CountedRows(), model.train_step

    @functools.wraps(known)
    def train_step(data: Any) -> Any:
        counted.note(data)
        return program_code(known)(data)

    setattr(model, _COUNTED, counted)
    model.train_step = train_step


def counted_rows(model: Any) -> CountedRows:
    """What the steps of a model have counted; nothing for a model without such steps.

    Args:
        model: A model of Keras.
    """
    return getattr(model, _COUNTED, None) or CountedRows()
