"""Published operations of device code, built from TensorFlow's own operations."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf

from popdist_tf.errors import LayerError
from popdist_tf.program_code import program_code

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


def swish(x: Any, name: str | None = None) -> Any:
    """The activation ``x * sigmoid(x)``.

    Args:
        x: Floating point values.
        name: Of the operation.

    Returns:
        As ``x``.
    """
    return tf.identity(tf.nn.silu(x), name=name)


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
    ref: bool = True,
) -> Any:
    """Sets a part of the values to zero, and divides the others by the part that is kept.

    Args:
        x: Floating point values.
        rate: The part that is set to zero, from 0 up to 1, but not 1.
        noise_shape: The shape of ``x``, where dimensions of size 1 share their decision. None and
            an empty list, as published, for one decision for each value.
        seed: Two integers, which decide alike in every call; None for decisions that differ.
        name: Of the operation.
        ref: Accepted as published.

    Returns:
        As ``x``.

    Raises:
        ValueError: The rate, the seed or the shape of the decisions is not as above.
    """
    del ref
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"The rate must be in the range [0, 1), but was {rate}")
    x = tf.convert_to_tensor(x)
    noise_shape = _noise_shape(x.shape.as_list(), noise_shape)
    if seed is not None and tf.convert_to_tensor(seed).shape != [2]:
        raise ValueError(
            f"Expected the seed to have a shape [2], but got {tf.convert_to_tensor(seed).shape}."
        )
    if seed is None:
        return tf.nn.dropout(x, rate, noise_shape, name=name)
    return tf.nn.experimental.stateless_dropout(
        x, rate, tf.cast(seed, tf.int32), "auto_select", noise_shape, name
    )


def _noise_shape(shape: list[Any], noise_shape: Any) -> list[Any] | None:
    """The published argument ``noise_shape``, checked; None where each value decides by itself."""
    sizes = list(noise_shape) if noise_shape is not None else []
    if not sizes:
        return None
    if len(sizes) != len(shape):
        raise ValueError("The length of noise_shape must equal the rank of x.")
    for size, noise in zip(shape, sizes, strict=True):
        if noise not in (1, size):
            raise ValueError(f"Dimension mismatch, {size} != {noise}.")
    return sizes


def segment_sum(data: Any, segment_ids: Any, num_segments: int, name: str | None = None) -> Any:
    """Sums the rows of each segment.

    Args:
        data: Rows.
        segment_ids: The segment of each row: sorted integers.
        num_segments: How many segments there are.
        name: Of the operation.

    Returns:
        Shape ``(num_segments, *data.shape[1:])``; zeros for segments without rows.

    Raises:
        ValueError: A shape is not fully defined, or the lengths differ; there is no segment.
    """
    data = tf.convert_to_tensor(data)
    segment_ids = tf.cast(tf.convert_to_tensor(segment_ids), tf.int32)
    for what, one in (("data", data), ("segment_ids", segment_ids)):
        if not one.shape.is_fully_defined():
            raise ValueError(f"Shape of {what} must be fully defined")
    rows, ids = data.shape.with_rank_at_least(1), segment_ids.shape.with_rank(1)
    if int(num_segments) <= 0:
        raise ValueError(f"num_segments must be greater than 0; got {num_segments}")
    if rows[0] != ids[0]:
        raise ValueError(
            f"segment_ids (shape {ids}) must have same length as axis 0 of data (shape {rows})"
        )
    return tf.math.unsorted_segment_sum(data, segment_ids, num_segments, name=name)


_CHANNELS = 3


def normalise_image(
    image: Any,
    channel_offsets: Any,
    channel_scales: Any,
    scale: float = 1,
    name: str | None = None,
) -> Any:
    """Normalises the three channels of images, and adds a fourth one of zeros.

    Args:
        image: Shape ``(..., 3)``; uint8, float16 or float32.
        channel_offsets: What is subtracted from each channel, after ``scale``: 3 values.
        channel_scales: What each channel is multiplied with after that: 3 values.
        scale: What all channels are multiplied with first.
        name: Of the operation.

    Returns:
        Shape ``(..., 4)``, in the dtype of ``image``; of a uint8 image, float16.

    Raises:
        TypeError: The image has another dtype.
        InvalidArgumentError: The image has another number of channels, or there are other numbers
            of offsets or scales.
    """
    image = tf.convert_to_tensor(image)
    if image.dtype not in (tf.float16, tf.float32, tf.uint8):
        raise TypeError(
            "The input `image` to `normalise_image` must be either float16, float32 or uint8."
        )
    dtype = tf.float16 if image.dtype == tf.uint8 else image.dtype
    offsets, scales = (tf.cast(values, dtype) for values in (channel_offsets, channel_scales))
    if image.shape[-1] != _CHANNELS:
        raise tf.errors.InvalidArgumentError(
            None, None, f"The image has {image.shape[-1]} channels, expected {_CHANNELS}."
        )
    for kind, values in (("offsets", offsets), ("scales", scales)):
        if values.shape != [_CHANNELS]:
            raise tf.errors.InvalidArgumentError(
                None,
                None,
                f"The {kind} must be the same size as the number of image channels {_CHANNELS}, "
                f"but was {values.shape}",
            )
    normal = (tf.cast(image, dtype) * tf.cast(scale, dtype) - offsets) * scales
    return tf.concat([normal, tf.zeros_like(normal[..., :1])], axis=-1, name=name or "concat")


_SERIAL_DIMENSIONS = ("a_columns", "a_rows_b_columns", "b_rows")


def serialized_matmul(
    a: Any,
    b: Any,
    serialization_factor: int,
    serialization_dimension: str,
    transpose_a: bool = False,
    transpose_b: bool = False,
    name: str | None = None,
) -> Any:
    """A product of matrices that the original computes in parts; the result is the same.

    Args:
        a: Matrices, of rank 2 or more.
        b: Matrices of the same rank.
        serialization_factor: Parts of the product.
        serialization_dimension: Which dimension is divided: "a_columns", "a_rows_b_columns" or
            "b_rows".
        transpose_a: Whether the matrices of ``a`` are transposed first.
        transpose_b: Whether the matrices of ``b`` are transposed first.
        name: Of the operation.

    Returns:
        The products.

    Raises:
        ValueError: The number of parts is below 1, or does not divide the dimension; a matrix has
            too few dimensions; or the dimension does not exist.
    """
    factor = int(serialization_factor)
    if factor < 1:
        raise ValueError(f"serialization_factor has to be at least 1, but was {factor}.")
    a, b = tf.convert_to_tensor(a), tf.convert_to_tensor(b)
    for letter, one in (("a", a), ("b", b)):
        if one.shape.rank < _OF_MATRIX:
            raise ValueError(f"Expected tensor '{letter}' to have a minimum rank of 2")
    if serialization_dimension not in _SERIAL_DIMENSIONS:
        raise ValueError(
            f"Invalid serialization_dimension={serialization_dimension}, expected one of: "
            f"{', '.join(_SERIAL_DIMENSIONS)}."
        )
    place = _SERIAL_DIMENSIONS.index(serialization_dimension)
    of_a = reversed(a.shape[-2:]) if transpose_a else a.shape[-2:]
    sizes = (*of_a, b.shape[-2 if transpose_b else -1])
    if sizes[place] is not None and sizes[place] % factor:
        raise ValueError(
            f"{serialization_dimension} serialization ({sizes[place]}) must be divisible by "
            f"serialization_factor ({factor})."
        )
    return tf.matmul(a, b, transpose_a, transpose_b, name=name or "serialized_matmul")


_OF_MATRIX = 2


def embedding_lookup(
    params: Any,
    ids: Any,
    serialization_factor: Any = 1,
    indices_are_sorted: Any = False,
    name: str | None = None,
) -> Any:
    """The rows of a table.

    Args:
        params: The table: a variable or tensor of at least one dimension.
        ids: Which rows; integers of any shape.
        serialization_factor: Accepted as published, without effect on a host. In SDK 2.2 and
            before, the third argument was the name.
        indices_are_sorted: Accepted as published, without effect on a host.
        name: Of the operation.

    Returns:
        Shape ``(*ids.shape, *params.shape[1:])``.
    """
    del indices_are_sorted
    name = serialization_factor if isinstance(serialization_factor, str) else name
    return tf.nn.embedding_lookup(params, ids, name=name)


def nce_loss(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    name: str = "nce_loss",
) -> Any:
    """The loss of noise-contrastive estimation: `tf.nn.nce_loss`, whose arguments these are.

    Returns:
        A loss for each row.
    """
    return tf.nn.nce_loss(
        weights, biases, tf.cast(labels, tf.int64), inputs, num_sampled, num_classes, num_true,
        sampled_values, name=name,
    )  # fmt: skip


def sampled_softmax_loss(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    name: str = "sampled_softmax_loss",
    seed: int | None = None,
) -> Any:
    """The loss of a sampled softmax: `tf.nn.sampled_softmax_loss`, whose arguments these are.

    Returns:
        A loss for each row.
    """
    return tf.nn.sampled_softmax_loss(
        weights, biases, tf.cast(labels, tf.int64), inputs, num_sampled, num_classes, num_true,
        sampled_values, seed=seed, name=name,
    )  # fmt: skip


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
    with tf.init_scope():  # outside of the loop or function that is being built
        queue = tf.queue.FIFOQueue(depth + 1, [x.dtype], [x.shape])
    keep_with_graph(queue)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def passed(value: Any) -> tuple[Any, Any]:
        first = tf.cond(tf.less(queue.size(), depth), lambda: tf.zeros_like(value), queue.dequeue)
        with tf.control_dependencies([first]):
            kept = queue.enqueue(value)
        with tf.control_dependencies([] if kept is None else [kept]):
            return tf.identity(first, name=name), _no_gradient

    return passed(x)


_KEPT: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


def keep_with_graph(*state: Any) -> None:
    """Keeps state as long as the graph that is being built: a function keeps none that it uses.

    Args:
        *state: Variables or queues of the operations of this graph.
    """
    _KEPT.setdefault(tf.compat.v1.get_default_graph(), []).extend(state)


def _no_gradient(*_: Any, **__: Any) -> Any:
    raise LayerError(
        "PD434",
        "fifo has no gradient: its result is a value of an earlier iteration",
        hint="tf.stop_gradient(fifo(x, depth)), or differentiate before the queue",
    )


def barrier(
    tensors: Any, insert_barrier_for_gradients: bool = False, name: str | None = None
) -> Any:
    """Lets tensors be used once all of them are computed.

    Args:
        tensors: A structure of tensors.
        insert_barrier_for_gradients: Accepted as published: the values are the same.
        name: Of the operations.

    Returns:
        The structure, of tensors that wait for all others.
    """
    del insert_barrier_for_gradients
    with tf.control_dependencies(tf.nest.flatten(tensors)):
        return tf.nest.map_structure(lambda one: tf.identity(one, name=name), tensors)


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
