"""How values of dtypes that Horovod does not know travel: as values of one that it knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from popdist_tf.errors import CollectiveError

if TYPE_CHECKING:
    from collections.abc import Callable

_KNOWN = {
    tf.uint8,
    tf.int8,
    tf.int32,
    tf.int64,
    tf.float16,
    tf.float32,
    tf.float64,
}
# Each of these holds every value of the other exactly; sums are rounded back to the original.
_REDUCED_AS = {
    tf.bfloat16: tf.float32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
}
_PAIRS = {tf.complex64: tf.float32, tf.complex128: tf.float64}


def carrier(tensor: Any, *, reduces: bool) -> tuple[Any, Callable[[Any], Any]]:
    """Turns a tensor into one that Horovod can carry.

    Args:
        tensor: What is to travel.
        reduces: Whether values are added on the way.

    Returns:
        The tensor to hand to Horovod, and the function that turns Horovod's answer back.

    Raises:
        CollectiveError: The dtype has no sum, or cannot travel at all.
    """
    dtype = tensor.dtype.base_dtype
    if dtype in _KNOWN:
        return tensor, tf.identity
    if dtype in _PAIRS:
        parts = tf.stack([tf.math.real(tensor), tf.math.imag(tensor)], axis=-1)
        return parts, lambda answer: tf.complex(answer[..., 0], answer[..., 1])
    if dtype in _REDUCED_AS:
        return tf.cast(tensor, _REDUCED_AS[dtype]), lambda answer: tf.cast(answer, dtype)
    if dtype == tf.bool and not reduces:
        return tf.cast(tensor, tf.uint8), lambda answer: tf.cast(answer, tf.bool)
    raise CollectiveError(
        "PD410",
        f"a tensor of dtype {dtype.name} cannot be "
        + ("summed over instances" if reduces else "sent between instances"),
        value=getattr(tensor, "name", None) if not tf.executing_eagerly() else tensor.shape,
        accepted="floating point and complex numbers, integers of up to 64 bits"
        + ("" if reduces else ", bool"),
        hint="tf.cast it to tf.int32 first" if dtype == tf.bool else None,
    )
