"""Fake quantization: rounding to a grid, as a quantized model computes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import onnx_ir as ir

from popdist_onnx.lowering.registry import Operation, lowering

if TYPE_CHECKING:
    from popdist_onnx.graph.tensor import Tensor


@lowering("FakeQuantize")
def fake_quantize(op: Operation) -> tuple[Tensor, Tensor]:
    """``(clip(round(x / scale) + zero, low, high) - zero) * scale``, and where it does not clip.

    That is `QuantizeLinear` and then `DequantizeLinear`, without a tensor of whole numbers between.
    The transform that finds such pairs writes it; PopART has no such operator.
    """
    tape = op.tape
    x, scale = op.inputs[:2]
    zero, axis = op.optional(2), op.number("axis", 1)
    low, high = op.number("low", 0), op.number("high", 0)
    wide = x.dtype if x.dtype is ir.DataType.DOUBLE else ir.DataType.FLOAT
    scale = _along(scale, x, axis)
    grid = tape.Cast(tape.Round(x / scale), to=wide)
    if zero is None:
        inside = tape.And(grid >= low, grid <= high)
        kept = tape.Clip(grid, tape.scalar(low, wide), tape.scalar(high, wide))
    else:
        zero = tape.Cast(_along(zero, x, axis), to=wide)
        grid = grid + zero
        inside = tape.And(grid >= low, grid <= high)
        kept = tape.Clip(grid, tape.scalar(low, wide), tape.scalar(high, wide)) - zero
    return tape.Cast(kept * tape.Cast(scale, to=wide), to=x.dtype), inside


def _along(given: Tensor, x: Tensor, axis: int) -> Tensor:
    """A scale or zero point that is broadcast along an axis of a tensor."""
    if not given.rank:
        return given
    if given.static and math.prod(given.shape) == 1:
        return given.tape.Reshape(given, [1] * max(x.rank, 0))
    shape = [-1 if place == axis % x.rank else 1 for place in range(x.rank)]
    return given.tape.Reshape(given, shape)
