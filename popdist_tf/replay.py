"""The elements that a job's data sets have given, which the program alone is given in a comparison.

``poprun --compare-alone`` runs a program as a job first. There, each instance keeps the elements
that its iterators give. The program alone is given the elements of all instances together, wherever
they have the form of its own: where it divides a global batch, or where its batches were made as
many times larger. So an order or an augmentation that depends on the rank does not prevent the
comparison.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow.compat.v2 as tf

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from popdist.recording import Recording


class Replay:
    """Keeps the elements of iterators in a job, or gives them to the program alone.

    Iterators are known by their number: both runs ask them in the same order.

    Args:
        recording: The recording of this process.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._numbers = itertools.count()

    def next_of(self, known: Callable[..., Any], iterator: Any, *args: Any, **kwargs: Any) -> Any:
        """The next element of an iterator, wherever the code that is built runs.

        Args:
            known: What gives it.
            iterator: The iterator, on which its number is kept.
            *args: Of the call.
            **kwargs: Of the call.
        """
        element = known(iterator, *args, **kwargs)
        leaves = tf.nest.flatten(element, expand_composites=True)
        if not all(isinstance(leaf, tf.Tensor) and _has_numbers(leaf.dtype) for leaf in leaves):
            return element
        if not hasattr(iterator, "_popdist_asked"):
            iterator._popdist_asked = next(self._numbers), itertools.count()  # noqa: SLF001 - ours
        number, elements = iterator._popdist_asked  # noqa: SLF001 - ours

        def exchanged(*arrays: Any) -> list[Any]:
            name = f"data.{number}.{next(elements)}"
            return self._exchanged(name, [np.asarray(array) for array in arrays])

        with tf.device("CPU:0"):
            found = tf.numpy_function(exchanged, leaves, [leaf.dtype for leaf in leaves])
        for leaf, one in zip(leaves, found, strict=True):
            one.set_shape(leaf.shape)
        return tf.nest.pack_sequence_as(element, found, expand_composites=True)

    def _exchanged(self, name: str, own: list[Any]) -> list[Any]:
        recording = self._recording
        if recording.job is None:
            np.savez(recording.folder / f"{name}.{recording.instance}.npz", *own)
            return own
        files = sorted(
            recording.job.glob(f"{name}.*.npz"), key=lambda path: int(path.suffixes[-2][1:])
        )
        parts = []
        for path in files:
            with np.load(path) as held:
                parts.append([held[f"arr_{index}"] for index in range(len(held.files))])
        if not parts or any(len(part) != len(own) for part in parts):
            return own  # the job has read less
        columns = list(zip(*parts, strict=True))
        rows = [_rows(array, column) for array, column in zip(own, columns, strict=True)]
        if all(rows) and (times := max(rows)) > 1 and set(rows) <= {1, times}:
            recording.note_given(times)
        if any(one != 1 for one in rows):
            return own
        recording.note_given(1)
        return [
            column[0] if _are_equal(array, column) else np.concatenate(column)
            for array, column in zip(own, columns, strict=True)
        ]


def _has_numbers(dtype: Any) -> bool:
    return bool(dtype.is_floating or dtype.is_integer or dtype.is_bool)


def _rows(own: Any, parts: Sequence[Any]) -> float:
    """How many times the rows of the program alone all instances have; 0 for arrays of no rows."""
    if _are_equal(own, parts):
        return 1
    is_array = own.ndim > 0 and all(part.shape[1:] == own.shape[1:] for part in parts)
    return sum(map(len, parts)) / (len(own) or 1) if is_array else 0


def _are_equal(own: Any, parts: Sequence[Any]) -> bool:
    """Whether all instances have the same array, in the form of the program alone."""
    return all(part.shape == own.shape and np.array_equal(part, parts[0]) for part in parts)
