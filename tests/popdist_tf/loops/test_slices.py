"""Copies of runs of rows, against loops of numpy."""

import numpy as np
import pytest
import tensorflow as tf

from popdist_tf import ipu

OPS = ipu.ops.slicing_ops
RNG = np.random.default_rng(0)


def copied(dst, src, counts, starts, ends, zero_unused):
    out = np.zeros_like(dst) if zero_unused else dst.copy()
    for count, start, end in zip(counts, starts, ends, strict=True):
        out[end : end + count] = src[start : start + count]
    return out


@pytest.mark.parametrize("zero_unused", [True, False])
@pytest.mark.parametrize(
    ("counts", "starts", "ends"),
    [
        ([2, 3, 1], [4, 0, 6], [0, 5, 3]),
        ([3, 3], [0, 4], [2, 4]),  # the second run writes over the first one
        ([0, 2, 0], [7, 1, 0], [9, 3, 0]),
        ([], [], []),
    ],
)
def test_runs_are_copied(counts, starts, ends, zero_unused):
    dst, src = (RNG.normal(size=(n, 2, 3)).astype(np.float32) for n in (9, 7))
    runs = [np.array(one, np.int64) for one in (counts, starts, ends)]
    found = OPS.sequence_slice(dst, src, *runs, zero_unused)
    np.testing.assert_array_equal(found, copied(dst, src, counts, starts, ends, zero_unused))
    again = tf.function(OPS.sequence_slice)(dst, src, *runs, zero_unused)
    np.testing.assert_array_equal(again, found)


def test_gradients_follow_the_rows():
    dst, src = (tf.constant(RNG.normal(size=(n, 2))) for n in (5, 4))
    weight = np.arange(10.0).reshape(5, 2)
    with tf.GradientTape() as tape:
        tape.watch([dst, src])
        out = OPS.sequence_slice(dst, src, [2, 1], [1, 3], [0, 4], zero_unused=False)
        loss = tf.reduce_sum(out * weight)
    of_dst, of_src = tape.gradient(loss, [dst, src])
    np.testing.assert_array_equal(of_dst, weight * [[0], [0], [1], [1], [0]])
    np.testing.assert_array_equal(
        tf.convert_to_tensor(of_src), [[0, 0], weight[0], weight[1], weight[4]]
    )


def test_packed_sequences_are_what_was_unpacked():
    padded = RNG.normal(size=(3, 4, 2)).astype(np.float32)
    counts, rows = [4, 1, 2], padded.reshape(12, 2)
    flat = OPS.sequence_slice_unpack(rows, counts, [0, 4, 8], 7)
    expected = np.concatenate([padded[i, :count] for i, count in enumerate(counts)])
    np.testing.assert_array_equal(flat, expected)
    back = OPS.sequence_slice_pack(tf.zeros_like(rows), flat, counts, [0, 4, 8])
    kept = padded * (np.arange(4)[None] < np.array(counts)[:, None])[..., None]
    np.testing.assert_array_equal(back, kept.reshape(12, 2))


@pytest.mark.parametrize(
    ("counts", "starts", "ends", "message"),
    [
        ([2], [0], [4], "behind the destination"),
        ([2], [3], [0], "behind the source"),
        ([1], [0], [-1], "before the destination"),
        ([1], [-1], [0], "before the source"),
    ],
)
def test_runs_outside_are_an_error(counts, starts, ends, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        OPS.sequence_slice(np.zeros((5, 1)), np.zeros((4, 1)), counts, starts, ends, True)  # noqa: FBT003 - published order


def test_offsets_and_rows_have_to_fit():
    ops = ipu.ops.slicing_ops
    with pytest.raises(ValueError, match="num_elems, src_offsets and dst_offsets must have"):
        ops.sequence_slice(
            np.zeros((3, 2)), np.zeros((3, 2)), [1, 1], [0], [0, 1], zero_unused=True
        )
    with pytest.raises(ValueError, match="num_elems and dst_offsets must have"):
        ops.sequence_slice_pack(np.zeros((3, 2)), np.zeros((3, 2)), [1, 1], [0])
    with pytest.raises(ValueError, match="src and dst inner shapes must match"):
        ops.sequence_slice(np.zeros((3, 2)), np.zeros((3, 1)), [1], [0], [0], zero_unused=True)


def test_gradients_of_sources_are_tensors_in_graphs():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        source = tf.compat.v1.placeholder(tf.float32, [4, 2])
        packed = ipu.ops.slicing_ops.sequence_slice_pack(
            tf.zeros([5, 2]), source, [1, 2], [3, 0], zero_unused=True
        )
        gradient = tf.gradients(tf.square(packed), source)[0]
        values = np.arange(8, dtype=np.float32).reshape(4, 2)
        found = session.run(gradient, {source: values})
    expected = 2 * values
    expected[3] = 0  # no run holds the last row
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_shards_of_different_lengths_are_reduced_and_divided(dtype):
    ops = ipu.ops.within_replica_ops
    shards = [np.full(size, value, dtype) for size, value in ((5, 1), (4, 2), (5, 3))]
    summed = np.array([6, 6, 6, 6, 4], dtype)
    for one in ops.all_reduce(shards, "COLLECTIVE_OP_ADD"):
        np.testing.assert_array_equal(one, summed)
    parts = [one.numpy().tolist() for one in ops.reduce_scatter(shards, "COLLECTIVE_OP_ADD")]
    assert parts == [[6, 6], [6, 6], [4, 0]]
    for op, expected in (("AND", [False, True]), ("OR", [True, True])):
        truths = [tf.constant([False, True]), tf.constant([True, True])]
        for one in ops.all_reduce(truths, f"COLLECTIVE_OP_LOGICAL_{op}"):
            np.testing.assert_array_equal(one, expected)
    with pytest.raises(ValueError, match="all be of the same type"):
        ops.all_gather([tf.ones(2), tf.ones(2, tf.int32)])
    with pytest.raises(ValueError, match="duplicate entries"):
        ops.all_gather([truths[0], truths[0]])
