"""Published operations of device code, built from TensorFlow's own operations."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from popdist_tf.errors import LayerError
from popdist_tf.versions import program_code

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def gelu(x: Any, approximate: bool = True, name: str | None = None) -> Any:
    """The Gaussian error linear unit.

    Args:
        x: Floating point values.
        approximate: Whether ``tanh`` stands in for the error function, as in the original.
        name: Of the operation.

    Returns:
        As ``x``.
    """
    return tf.nn.gelu(x, approximate=approximate, name=name)


def softmax(x: Any, stable: bool = False, name: str | None = None) -> Any:
    """The softmax over the last dimension.

    Args:
        x: Floating point values.
        stable: Accepted as published: TensorFlow's is stable.
        name: Of the operation.

    Returns:
        As ``x``.
    """
    del stable
    return tf.nn.softmax(x, name=name)


def hard_sigmoid(x: Any, name: str | None = None) -> Any:
    """The hard sigmoid ``0.2 x + 0.5``, between 0 and 1.

    Args:
        x: Floating point values.
        name: Of the operation.

    Returns:
        As ``x``. (The hard sigmoid of Keras 3 has another slope.)
    """
    return tf.clip_by_value(0.2 * tf.convert_to_tensor(x) + 0.5, 0.0, 1.0, name=name)


def dropout(
    x: Any,
    rate: float = 0.5,
    noise_shape: Any = None,
    seed: Any = None,
    name: str | None = None,
    ref: Any = None,
) -> Any:
    """Sets a part of the values to zero, and divides the others by the part that is kept.

    Args:
        x: Floating point values.
        rate: The part that is set to zero, from 0 to 1.
        noise_shape: As of `tf.nn.dropout`: dimensions of size 1 share their decision.
        seed: Two integers, which decide alike in every call; None for decisions that differ.
        name: Of the operation.
        ref: Accepted as published.

    Returns:
        As ``x``.
    """
    del ref
    if seed is None:
        return tf.nn.dropout(x, rate, noise_shape, name=name)
    return tf.nn.experimental.stateless_dropout(
        x, rate, tf.cast(seed, tf.int32), "auto_select", noise_shape, name
    )


def segment_sum(data: Any, segment_ids: Any, num_segments: int, name: str | None = None) -> Any:
    """Sums the rows of each segment.

    Args:
        data: Rows.
        segment_ids: The segment of each row: sorted integers.
        num_segments: How many segments there are.
        name: Of the operation.

    Returns:
        Shape ``(num_segments, *data.shape[1:])``; zeros for segments without rows.
    """
    return tf.math.unsorted_segment_sum(data, segment_ids, num_segments, name=name)


def normalise_image(
    image: Any,
    channel_offsets: Any,
    channel_scales: Any,
    scale: float = 1,
    name: str | None = None,
) -> Any:
    """Normalises the three channels of images, and adds a fourth one of zeros.

    Args:
        image: Shape ``(..., 3)``, uint8 or floating point.
        channel_offsets: What is subtracted from each channel, after ``scale``: 3 values.
        channel_scales: What each channel is multiplied with after that: 3 values.
        scale: What all channels are multiplied with first.
        name: Of the operation.

    Returns:
        Shape ``(..., 4)``, in the dtype of ``channel_offsets``.
    """
    offsets = tf.convert_to_tensor(channel_offsets)
    image = tf.cast(image, offsets.dtype)
    normal = (image * tf.cast(scale, offsets.dtype) - offsets) * tf.cast(
        channel_scales, offsets.dtype
    )
    return tf.concat([normal, tf.zeros_like(normal[..., :1])], axis=-1, name=name or "concat")


def embedding_lookup(
    params: Any,
    ids: Any,
    name: str | None = None,
    serialization_factor: int = 1,
    indices_are_sorted: bool = False,
) -> Any:
    """The rows of a table.

    Args:
        params: The table: a variable or tensor of at least one dimension.
        ids: Which rows; integers of any shape.
        name: Of the operation.
        serialization_factor: Accepted as published, without effect on a host.
        indices_are_sorted: Accepted as published, without effect on a host.

    Returns:
        Shape ``(*ids.shape, *params.shape[1:])``.
    """
    del serialization_factor, indices_are_sorted
    return tf.nn.embedding_lookup(params, ids, name=name)


def print_tensor(input: Any, name: str = "") -> Any:  # noqa: A002 - published name
    """Prints a tensor.

    Args:
        input: The tensor.
        name: What is printed before it; its own name where it is empty.

    Returns:
        The operation that prints, in graph mode; None otherwise.
    """
    own = "" if tf.executing_eagerly() else getattr(input, "name", "")
    return tf.print(name or own, input)


def remap(x: Any, name: str | None = None) -> Any:
    """Returns a tensor unchanged: on a host there are no tiles to spread it over.

    Args:
        x: A tensor.
        name: Of the operation.

    Returns:
        The tensor.
    """
    return tf.identity(x, name=name)


def fifo(x: Any, depth: int, offload: bool = False, name: str | None = None) -> Any:
    """Hands out the value of some iterations before, in a loop or function that runs repeatedly.

    Each call in the program's text is a queue of its own, of its replica. The queue has no
    gradient, as in the original.

    Args:
        x: What enters the queue, of a fixed shape.
        depth: After how many iterations it comes out.
        offload: Accepted as published, without effect on a host.
        name: Of the operation.

    Returns:
        As ``x``. Zeros in the first ``depth`` iterations, where the original has any values.

    Raises:
        LayerError: The depth is not positive, the shape is unknown, or the code is eager, where
            each call would make a queue of its own.
    """
    del offload
    x = tf.convert_to_tensor(x)
    if tf.executing_eagerly() or depth < 1 or not x.shape.is_fully_defined():
        raise LayerError(
            "PD434",
            "fifo cannot make a queue of this",
            value=f"depth {depth}, shape {x.shape}"
            + (", in eager code" if tf.executing_eagerly() else ""),
            accepted="a depth of at least 1, a fixed shape, and code of a loop or tf.function",
        )
    with tf.init_scope():
        # They belong to one replica, so the strategy must not create them.
        held = ResourceVariable(
            tf.zeros([depth, *x.shape], x.dtype), trainable=False, name="fifo/values"
        )
        count = ResourceVariable(0, dtype=tf.int64, trainable=False, name="fifo/count")
    # A function does not keep what it uses.
    _FIFOS.setdefault(tf.compat.v1.get_default_graph(), []).extend([held, count])

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def passed(value: Any) -> tuple[Any, Any]:
        place = (count.assign_add(1) - 1) % depth
        with tf.control_dependencies([place]):
            first = tf.identity(tf.gather(held.read_value(), place))
        with tf.control_dependencies([first]):
            kept = held.scatter_update(tf.IndexedSlices(value, place))
        with tf.control_dependencies([] if kept is None else [kept]):
            return tf.identity(first, name=name), _no_gradient

    return passed(x)


_FIFOS: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


def _no_gradient(*_: Any, **__: Any) -> Any:
    raise LayerError(
        "PD434",
        "fifo has no gradient: its result is a value of an earlier iteration",
        hint="tf.stop_gradient(fifo(x, depth)), or differentiate before the queue",
    )


def codelet_expression_op(vertex_expression: Callable[..., Any], *args: Any) -> Any:
    """Computes an elementwise expression, which the original compiles to one operation.

    Args:
        vertex_expression: A function of as many values as there are tensors.
        *args: Tensors of one shape.

    Returns:
        What the function returns for each element. It has gradients, unlike the original.
    """
    return program_code(vertex_expression)(*(tf.convert_to_tensor(one) for one in args))


def multi_conv(
    func: Callable[..., Any] | None = None, options: Sequence[Any] | dict[str, str] | None = None
) -> Any:
    """Marks a function whose independent convolutions the original runs at the same time.

    Args:
        func: The function; None where this is used as a decorator with arguments.
        options: Accepted as published, without effect on a host.

    Returns:
        The function, or what decorates it.
    """
    del options
    return (lambda function: function) if func is None else func


def outlined_function(
    func: Callable[..., Any] | None = None,
    unique_sharding: bool = False,
    keep_input_layouts: bool | None = None,
    name: str | None = None,
) -> Any:
    """Marks a function whose code the original shares between its calls.

    Args:
        func: The function; None where this is used as a decorator with arguments.
        unique_sharding: Accepted as published, without effect on a host.
        keep_input_layouts: Accepted as published, without effect on a host.
        name: Accepted as published.

    Returns:
        The function, or what decorates it.
    """
    del unique_sharding, keep_input_layouts, name
    return (lambda function: function) if func is None else func
