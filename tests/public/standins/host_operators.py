"""Functions of the host for operators that public TensorFlow programs compile for the IPU.

A program gets them by the variable ``POPDIST_CUSTOM_OPS``, as a user's own are named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from popdist_tf import ipu

if TYPE_CHECKING:
    from popdist_tf.loops.user_operators import Call


@ipu.custom_ops.host_op("custom_grouped_gather_scatter")
def grouped(call: Call) -> Any:
    """Rows of tables, or sums of rows into tables, for groups apart."""
    _, operator, _, groups, size, *_ = (call.attributes or "").split()
    data, indices = call.inputs
    if operator == "gather":
        return tf.gather(data, indices, axis=1, batch_dims=1)
    if operator not in ("scatter", "scatter_sum"):
        raise NotImplementedError(operator)
    first = int(size) * tf.range(int(groups))[:, tf.newaxis]
    rows = tf.reshape(data, [-1, data.shape[2]])
    places = tf.reshape(indices + first, [-1])
    sums = tf.math.unsorted_segment_sum(rows, places, int(groups) * int(size))
    return tf.reshape(sums, [int(groups), int(size), data.shape[2]])


@ipu.custom_ops.host_op("liblengthRegulator")
def repeated(call: Call) -> Any:
    """Columns as often as their durations say, and zeros after them."""
    columns, durations = call.inputs
    ends = tf.cumsum(tf.cast(durations, tf.int32), axis=1)
    frames = tf.range(call.output_shapes[0][2])
    places = tf.searchsorted(ends, tf.tile(frames[tf.newaxis], [ends.shape[0], 1]), side="right")
    padded = tf.pad(columns, [[0, 0], [0, 0], [0, 1]])
    return tf.gather(padded, places, axis=2, batch_dims=1)


@ipu.custom_ops.host_op("libcustom_op")
def cropped(call: Call) -> Any:
    """The middle of pictures."""
    height, width = call.output_shapes[0][1:3]
    return tf.keras.layers.CenterCrop(height, width)(call.inputs[0])


@ipu.custom_ops.host_op("libproduct")
@ipu.custom_ops.host_op("libtutorial_attributes_example")
def product(call: Call) -> Any:
    """A product of matrices."""
    return tf.matmul(*call.inputs)


@ipu.custom_ops.host_op("libcustom_add_inplace")
def added(call: Call) -> Any:
    """A sum."""
    return tf.add(*call.inputs)


@ipu.custom_ops.host_op("libcustom_rotate_op")
def rotated(call: Call) -> Any:
    """Points of a plane, turned by angles."""
    x, y, angle = call.inputs
    cosine, sine = tf.cos(angle), tf.sin(angle)
    return x * cosine - y * sine, x * sine + y * cosine
