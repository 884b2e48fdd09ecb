"""Tensors that follow from a tensor's shape: the shape, filled tensors, counts, sums back to it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_onnx.graph.tensor import Operand, Tensor


def zeros(like: Tensor, dtype: ir.DataType | None = None) -> Tensor:
    """Zeros of a tensor's shape as a small node; ``dtype`` None takes the tensor's type."""
    return fill(like, 0, dtype)


def fill(like: Tensor, number: float, dtype: ir.DataType | None = None) -> Tensor:
    """One number in a tensor's shape; ``dtype`` None takes the tensor's type."""
    tape = like.tape
    content = ir.Tensor(np.asarray([number]).astype((dtype or like.dtype).numpy()))
    return tape.ConstantOfShape(lengths(like), value=content)


def lengths(tensor: Tensor) -> Tensor:
    """A tensor's shape as an int64 tensor: a constant where it is known."""
    tape = tensor.tape
    return tape.ints(*tensor.shape) if tensor.static else tape.Shape(tensor)


def shaped(tensor: Tensor, like: Tensor) -> Tensor:
    """A tensor in another's shape; a length of 0 stays 0, where ONNX's default copies one."""
    return (
        reshaped(tensor, like.shape) if like.static else tensor.tape.Reshape(tensor, lengths(like))
    )


def reshaped(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """A tensor in a given shape; a length of 0 stays 0, where ONNX's default copies a length."""
    tape = tensor.tape
    return tape.Reshape(tensor, tape.ints(*shape), allowzero=1 if 0 in shape else None)


def count(tensor: Tensor, axes: Sequence[int] | None = None) -> Operand:
    """The number of elements along axes: a number where lengths are known, else a scalar tensor."""
    tape, known = tensor.tape, tensor.dims
    chosen = range(tensor.rank) if axes is None else axes
    if known is not None and all(isinstance(known[axis], int) for axis in chosen):
        return float(math.prod(int(known[axis] or 0) for axis in chosen))
    found = tape.Gather(tape.Shape(tensor), list(chosen))
    return tape.Cast(tape.ReduceProd(found, keepdims=0), to=tensor.dtype.value)


def unbroadcast(gradient: Tensor, like: Tensor) -> Tensor:
    """Sums over every axis along which a tensor was repeated.

    Nothing is written where the shapes are known to agree.
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
