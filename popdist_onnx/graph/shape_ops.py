"""What follows from a tensor's lengths: tensors of its shape, its shape, its number of elements."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_onnx.graph.tensor import Operand, Tensor


def zeros(like: Tensor, dtype: ir.DataType | None = None) -> Tensor:
    """Zeros of a tensor's shape.

    Args:
        like: The tensor.
        dtype: Their type; None takes the tensor's.

    Returns:
        The zeros; a small node, the runtime makes the content.
    """
    return fill(like, 0, dtype)


def fill(like: Tensor, number: float, dtype: ir.DataType | None = None) -> Tensor:
    """One number in a tensor's shape.

    Args:
        like: The tensor.
        number: The number.
        dtype: Its type; None takes the tensor's.

    Returns:
        The filled tensor.
    """
    tape = like.tape
    content = ir.Tensor(np.asarray([number]).astype((dtype or like.dtype).numpy()))
    return tape.ConstantOfShape(lengths(like), value=content)


def lengths(tensor: Tensor) -> Tensor:
    """A tensor's shape as a tensor: a constant where it is known.

    Args:
        tensor: The tensor.

    Returns:
        Its shape, int64.
    """
    tape = tensor.tape
    return tape.ints(*tensor.shape) if tensor.static else tape.Shape(tensor)


def shaped(tensor: Tensor, like: Tensor) -> Tensor:
    """A tensor's elements in the shape of another.

    Args:
        tensor: The tensor.
        like: One with as many elements.

    Returns:
        The elements, reshaped; a length of 0 is one, where ONNX's default copies a length.
    """
    return (
        reshaped(tensor, like.shape) if like.static else tensor.tape.Reshape(tensor, lengths(like))
    )


def reshaped(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """A tensor's elements in a shape, in which a length of 0 is one.

    Args:
        tensor: The tensor.
        shape: The lengths.

    Returns:
        The elements, reshaped.
    """
    tape = tensor.tape
    return tape.Reshape(tensor, tape.ints(*shape), allowzero=1 if 0 in shape else None)


def count(tensor: Tensor, axes: Sequence[int] | None = None) -> Operand:
    """The number of elements along some axes.

    Args:
        tensor: The tensor.
        axes: The axes, not negative; None takes all.

    Returns:
        A number where the lengths are known, else a scalar of the tensor's type.
    """
    tape, known = tensor.tape, tensor.dims
    chosen = range(tensor.rank) if axes is None else axes
    if known is not None and all(isinstance(known[axis], int) for axis in chosen):
        return float(math.prod(int(known[axis] or 0) for axis in chosen))
    found = tape.Gather(tape.Shape(tensor), list(chosen))
    return tape.Cast(tape.ReduceProd(found, keepdims=0), to=tensor.dtype.value)
