"""Copies of consecutive rows between tensors: packing and unpacking of sequences."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v2 as tf


def sequence_slice(
    dst: Any,
    src: Any,
    num_elems: Any,
    src_offsets: Any,
    dst_offsets: Any,
    zero_unused: bool,
    name: str | None = None,
) -> Any:
    """Copies several runs of rows from one tensor into another.

    Where two runs overlap in the destination, the later run counts.

    Args:
        dst: The destination, of rank 2 or more.
        src: The source, with rows of the same shape.
        num_elems: How many rows each run has: one dimension of integers.
        src_offsets: The first row of each run in the source.
        dst_offsets: The first row of each run in the destination.
        zero_unused: Whether rows of the result that no run writes are zero; otherwise they are
            those of ``dst``.
        name: Of the operation.

    Returns:
        Shape and dtype of ``dst``, with the runs copied.

    Raises:
        ValueError: Rows have different shapes, or there is another number of offsets than of runs.
        InvalidArgumentError: A run is not inside of the source or the destination.
    """
    return _copied(
        tf.convert_to_tensor(dst),
        tf.convert_to_tensor(src),
        _runs(num_elems=num_elems, src_offsets=src_offsets, dst_offsets=dst_offsets),
        zero_unused=zero_unused,
        name=name,
    )


def _runs(**runs: Any) -> list[Any]:
    """The sizes and offsets of runs, one of each for every run."""
    found = [tf.cast(tf.convert_to_tensor(one), tf.int32) for one in runs.values()]
    first = found[0].shape
    if first.rank != 1 or any(one.shape != first for one in found):
        *others, last = runs
        raise ValueError(
            f"{', '.join(others)} and {last} must have matching, nonzero shapes of rank 1."
        )
    return found


def _copied(dst: Any, src: Any, runs: list[Any], *, zero_unused: bool, name: Any) -> Any:
    if src.shape[1:] != dst.shape[1:]:
        raise ValueError("src and dst inner shapes must match.")
    src = _with_dense_gradient(src)
    counts, starts, ends = runs
    run = tf.repeat(tf.range(tf.size(counts)), counts)
    within = tf.range(tf.size(run)) - tf.gather(tf.cumsum(counts, exclusive=True), run)
    of_src = tf.gather(starts, run) + within
    of_dst = tf.gather(ends, run) + within
    checked = [
        tf.debugging.assert_non_negative(of_dst, "a run begins before the destination"),
        tf.debugging.assert_less(of_dst, tf.shape(dst)[0], "a run ends behind the destination"),
        tf.debugging.assert_non_negative(of_src, "a run begins before the source"),
        tf.debugging.assert_less(of_src, tf.shape(src)[0], "a run ends behind the source"),
    ]
    with tf.control_dependencies([one for one in checked if one is not None]):
        # The last run that writes a row, so that the result does not depend on an order.
        order = tf.math.unsorted_segment_max(tf.range(tf.size(run)), of_dst, tf.shape(dst)[0])
    is_written = tf.greater_equal(order, 0)
    of_row = tf.gather(tf.concat([of_src, [0]], 0), tf.where(is_written, order, tf.size(run)))
    copied = tf.gather(tf.concat([src, tf.zeros_like(dst[:1])], 0), of_row)
    mask = tf.reshape(
        is_written, tf.concat([tf.shape(dst)[:1], tf.ones_like(tf.shape(dst)[1:])], 0)
    )
    others = tf.zeros_like(dst) if zero_unused else dst
    result = tf.where(mask, copied, others)
    return tf.identity(tf.ensure_shape(result, dst.shape), name=name)


def _places(counts: Any) -> Any:
    """The first row of each run, where the runs stand one behind the other."""
    return tf.cumsum(counts, exclusive=True)


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _with_dense_gradient(value: Any) -> tuple[Any, Any]:
    """A tensor whose gradient is a tensor, where that of `tf.gather` is `tf.IndexedSlices`."""
    return tf.identity(value), tf.convert_to_tensor


def sequence_slice_unpack(
    src: Any, num_elems: Any, src_offsets: Any, total_elements: int, name: str | None = None
) -> Any:
    """Copies several runs of rows out of a tensor, one behind the other.

    Args:
        src: The source, of rank 2 or more.
        num_elems: How many rows each run has: one dimension of integers.
        src_offsets: The first row of each run in the source.
        total_elements: How many rows all runs have together.
        name: Of the operation.

    Returns:
        Shape ``(total_elements, *src.shape[1:])``.

    Raises:
        ValueError: There is another number of offsets than of runs.
        InvalidArgumentError: A run is not inside of the source, or the total is too small.
    """
    src = tf.convert_to_tensor(src)
    counts, starts = _runs(num_elems=num_elems, src_offsets=src_offsets)
    empty = tf.zeros(tf.concat([[total_elements], tf.shape(src)[1:]], 0), src.dtype)
    empty = tf.ensure_shape(empty, [total_elements, *src.shape[1:]])
    runs = [counts, starts, _places(counts)]
    return _copied(empty, src, runs, zero_unused=True, name=name)


def sequence_slice_pack(
    dst: Any,
    src: Any,
    num_elems: Any,
    dst_offsets: Any,
    zero_unused: bool = False,
    name: str | None = None,
) -> Any:
    """Copies consecutive runs of rows into a tensor: the opposite of `sequence_slice_unpack`.

    Args:
        dst: The destination, of rank 2 or more.
        src: The source, in which the runs stand one behind the other.
        num_elems: How many rows each run has: one dimension of integers.
        dst_offsets: The first row of each run in the destination.
        zero_unused: Whether rows that no run writes are zero; otherwise they are those of ``dst``.
        name: Of the operation.

    Returns:
        Shape and dtype of ``dst``, with the runs copied.

    Raises:
        ValueError: Rows have different shapes, or there is another number of offsets than of runs.
        InvalidArgumentError: A run is not inside of the source or the destination.
    """
    counts, ends = _runs(num_elems=num_elems, dst_offsets=dst_offsets)
    dst, src = tf.convert_to_tensor(dst), tf.convert_to_tensor(src)
    runs = [counts, _places(counts), ends]
    return _copied(dst, src, runs, zero_unused=zero_unused, name=name)
