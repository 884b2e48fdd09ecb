"""Element-by-element functions that ``ai.onnx`` has under another name, or not at all."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from popdist_onnx.lowering.registry import Operation, lowering

if TYPE_CHECKING:
    from popdist_onnx.graph.tensor import Operand, Tensor


_OPSET_WITH_GELU = 20


@lowering("Gelu")
def gelu(op: Operation) -> Tensor:
    """The tanh approximation, ``0.5x (1 + tanh(0.79788456x + 0.0356774081x^3))``.

    With ``approximate`` none, which `recognise_gelu` writes, the exact function.
    """
    (x,) = op.inputs
    approximate = op.text("approximate", "tanh")
    if op.tape.opset >= _OPSET_WITH_GELU:
        return op.tape.Gelu(x, approximate=approximate)
    # Forms that the fusions of ONNX Runtime recognise.
    if approximate == "none":
        return x * (op.tape.Erf(x / math.sqrt(2)) + 1.0) * 0.5
    inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
    return x * 0.5 * (op.tape.Tanh(inner) + 1.0)


@lowering("GeluErf")
def gelu_erf(op: Operation) -> Tensor:
    """The exact function, ``0.5x (1 + erf(x / sqrt 2))``."""
    (x,) = op.inputs
    return x * (op.tape.Erf(x / math.sqrt(2)) + 1.0) * 0.5


@lowering("Swish")
def swish(op: Operation) -> Tensor:
    """``x sigmoid(x)``."""
    (x,) = op.inputs
    return x * op.tape.Sigmoid(x)


@lowering("Expm1")
def expm1(op: Operation) -> Tensor:
    """``exp(x) - 1`` without cancellation: ``tanh(x/2) (exp(x) + 1)``."""
    (x,) = op.inputs
    return op.tape.Tanh(x * 0.5) * (op.tape.Exp(x) + 1.0)


@lowering("Log1p")
def log1p(op: Operation) -> Tensor:
    """``log(1 + x)`` without loss at small x (Kahan): ``log(u) x / (u - 1)`` with ``u = 1 + x``."""
    tape = op.tape
    (x,) = op.inputs
    u = x + 1.0
    exact = tape.Or(tape.Equal(u, 1.0), tape.Equal(u, math.inf))
    # The divisor of the branch that is not selected must be finite and not zero.
    rest = tape.Where(exact, tape.scalar(1, x.dtype), u - 1.0)
    return tape.Where(exact, x, tape.Log(u) * (tape.Where(exact, rest, x) / rest))


@lowering("Atan2")
def atan2(op: Operation) -> Tensor:
    """The angle of the point (x, y), for inputs ``[y, x]``; signed zeros count as zero."""
    tape = op.tape
    y, x = op.inputs
    above = tape.Where(y < 0, tape.scalar(-1, y.dtype), tape.scalar(1, y.dtype))
    upright = tape.Equal(x, 0)
    slope = tape.Atan(y / tape.Where(upright, tape.scalar(1, x.dtype), x))
    turned = slope + tape.Where(x < 0, above * math.pi, tape.scalar(0, y.dtype))
    straight = tape.Sign(y) * (math.pi / 2)
    return tape.Where(upright, straight, turned)


@lowering("Fmod")
def fmod(op: Operation) -> Tensor:
    """The remainder of a division rounded toward zero; it has the dividend's sign."""
    return op.tape.Mod(*op.inputs, fmod=1)


@lowering("Remainder")
def remainder(op: Operation) -> Tensor:
    """The remainder of a division rounded down; it has the divisor's sign."""
    tape = op.tape
    a, b = op.inputs
    if not a.dtype.is_floating_point():
        return tape.Mod(a, b, fmod=0)
    rest = tape.Mod(a, b, fmod=1)
    # Signs are compared, as a product of small numbers could underflow.
    signs_differ = tape.Xor(rest < 0, b < 0)
    wrong = tape.And(tape.Not(tape.Equal(rest, 0)), signs_differ)
    return tape.Where(wrong, rest + b, rest)


@lowering("IncrementMod")
def increment_mod(op: Operation) -> Tensor:
    """``(x + increment) mod modulus``; the remainder has the sign of the sum."""
    (x,) = op.inputs
    total = x + _number(x, op.real("increment", 0.0))
    return op.tape.Mod(total, _number(x, op.real("modulus", 1.0)), fmod=1)


@lowering("Round", "NearbyInt")
def round_(op: Operation) -> Tensor:
    """The nearest integer; ties go to the even one."""
    return op.tape.Round(*op.inputs)


@lowering("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot")
def bitwise(op: Operation) -> Tensor:
    """As in ``ai.onnx`` since opset 18."""
    return op.tape.many(op.node.op_type, 1, *op.inputs)[0]


@lowering("BitwiseXnor")
def bitwise_xnor(op: Operation) -> Tensor:
    """Ones where the bits agree."""
    return op.tape.BitwiseNot(op.tape.BitwiseXor(*op.inputs))


@lowering("Scale")
def scale(op: Operation) -> Tensor:
    """The input times a number."""
    (x,) = op.inputs
    return x * _number(x, op.real("scale", 1.0))


@lowering("NormalizeImage")
def normalize_image(op: Operation) -> Tensor:
    """``(scale * image - offsets) * scales`` of the last dimension, and a fourth channel of zeros.

    Offsets and scales have the type of the result; an image may be of bytes.
    """
    image, offsets, scales = op.inputs
    if image.lengths[-1:] != (3,) or offsets.lengths != (3,) or scales.lengths != (3,):
        raise op.misfit(
            "takes three channels in the last dimension, and an offset and a scale of each",
            value=[list(one.lengths) for one in op.inputs],
        )
    if image.dtype != offsets.dtype:
        image = op.tape.Cast(image, to=offsets.dtype)
    made = (image * _number(offsets, op.real("scale", 1.0)) - offsets) * scales
    return op.tape.Pad(made, [0] * (2 * made.rank - 1) + [1])


@lowering("ScaledAdd")
def scaled_add(op: Operation) -> Tensor:
    """``scale0 * a + scale1 * b``; the scales are attributes, or scalars given as inputs."""
    a, b = op.inputs[:2]
    first: Operand = op.optional(2)
    second: Operand = op.optional(3)
    return _scaled(a, first, op.real("scale0", 1.0)) + _scaled(b, second, op.real("scale1", 1.0))


def _scaled(x: Tensor, given: Operand, number: float) -> Tensor:
    if given is not None:
        return x * given
    return x if number == 1.0 else x * _number(x, number)


def _number(x: Tensor, number: float) -> np.ndarray[Any, Any]:
    return np.asarray(number).astype(x.dtype.numpy())


@lowering("Detach", "Nop", "TensorRemap")
def same(op: Operation) -> Tensor:
    """The input; autodiff stops at `Detach` before it is lowered, and hosts have no tiles."""
    return op.tape.Identity(*op.inputs)


# Fake quantization: rounding to a grid, as a quantized model computes.


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
