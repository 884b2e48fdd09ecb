"""Sums a gradient back to the shape that its tensor had before it was broadcast."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from popdist_onnx.graph.tensor import Tensor


def unbroadcast(gradient: Tensor, like: Tensor) -> Tensor:
    """Sums over every axis along which a tensor was repeated.

    Nothing is written where the shapes are known to agree.

    Args:
        gradient: Gradient of the broadcast tensor.
        like: The tensor before broadcasting.

    Returns:
        The gradient in the tensor's own shape.
    """
    big, small = gradient.dims, like.dims
    if big is None or small is None:
        return _at_run_time(gradient, like)
    lead = len(big) - len(small)
    pairs = list(zip(big[lead:], small, strict=True))
    if any(not _decided(one, other) for one, other in pairs):
        return _at_run_time(gradient, like)
    inner = [lead + axis for axis, (one, other) in enumerate(pairs) if other == 1 and one != 1]
    if not inner and not lead:
        return gradient
    if not inner:
        return gradient.tape.ReduceSum(gradient, list(range(lead)), keepdims=0)
    total = gradient.tape.ReduceSum(gradient, [*range(lead), *inner], keepdims=1)
    return gradient.tape.Squeeze(total, list(range(lead))) if lead else total


def _decided(big: object, small: object) -> bool:
    return small == 1 or (big == small and small is not None)


def _at_run_time(gradient: Tensor, like: Tensor) -> Tensor:
    tape = gradient.tape
    shape = tape.Shape(like)
    # A tensor of the gradient's rank: the axes that `like` lacks count as length 1.
    lack = tape.Sub(tape.Shape(tape.Shape(gradient)), tape.Shape(shape))
    ones = tape.Expand(np.asarray([1], np.int64), lack)
    repeated = tape.Equal(tape.Concat(ones, shape, axis=0), np.asarray([1], np.int64))
    axes = tape.Squeeze(tape.NonZero(repeated), [0])
    total = tape.ReduceSum(gradient, axes, keepdims=1, noop_with_empty_axes=1)
    return tape.Reshape(total, shape)
