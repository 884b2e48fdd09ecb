"""Functions of one variable from calculus: each line is a derivative times the gradient."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from popdist_onnx.gradients.registry import At, gradient, no_gradient
from popdist_onnx.graph import shape_ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from popdist_onnx.graph.tensor import Tensor

_RULES: dict[str, Callable[[At], Tensor]] = {
    "Abs": lambda at: at.g * at.tape.Sign(at.x),
    "Acos": lambda at: -at.g / at.tape.Sqrt(1 - at.x * at.x),
    "Acosh": lambda at: at.g / at.tape.Sqrt(at.x * at.x - 1),
    "Asin": lambda at: at.g / at.tape.Sqrt(1 - at.x * at.x),
    "Asinh": lambda at: at.g / at.tape.Sqrt(at.x * at.x + 1),
    "Atan": lambda at: at.g / (at.x * at.x + 1),
    "Atanh": lambda at: at.g / (1 - at.x * at.x),
    "Cos": lambda at: -at.g * at.tape.Sin(at.x),
    "Cosh": lambda at: at.g * at.tape.Sinh(at.x),
    "Erf": lambda at: at.g * (2 / math.sqrt(math.pi) * at.tape.Exp(-(at.x * at.x))),
    "Exp": lambda at: at.g * at.y,
    "Identity": lambda at: at.g,
    "Log": lambda at: at.g / at.x,
    "Neg": lambda at: -at.g,
    "Reciprocal": lambda at: -at.g * (at.y * at.y),
    "Sin": lambda at: at.g * at.tape.Cos(at.x),
    "Sinh": lambda at: at.g * at.tape.Cosh(at.x),
    "Sqrt": lambda at: at.g / (2 * at.y),
    "Tan": lambda at: at.g * (1 + at.y * at.y),
    "Tanh": lambda at: at.g * (1 - at.y * at.y),
}

for _op_type, _rule in _RULES.items():
    gradient(_op_type)(_rule)


@gradient("Cast", "CastLike", inputs=(0,))
def _cast(at: At) -> Tensor:
    return at.tape.Cast(at.g, to=at.x.dtype.value)


@gradient("Ceil", "Floor", "Round", "Sign")
def _steps(at: At) -> Tensor:
    """Zero wherever the derivative exists; torch and PopART have zeros here, not no gradient."""
    return shape_ops.zeros(at.x)


_WITHOUT = {
    "its result is not a floating-point number": "And BitShift BitwiseAnd BitwiseNot BitwiseOr "
    "BitwiseXor Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Not Or Xor",
    "its result does not change with small changes of the input": "ArgMax ArgMin Hardmax "
    "NonMaxSuppression NonZero Unique",
    "its result does not depend on the content of the input": "Bernoulli BlackmanWindow Constant "
    "ConstantOfShape EyeLike HammingWindow HannWindow Multinomial RandomNormal RandomNormalLike "
    "RandomUniform RandomUniformLike Range Shape Size",
    "it works on whole numbers": "ConvInteger DequantizeLinear DynamicQuantizeLinear MatMulInteger "
    "QLinearConv QLinearMatMul QuantizeLinear",
}
"""Operators that no gradient passes, by the reason."""

for _reason, _op_types in _WITHOUT.items():
    no_gradient(*_op_types.split(), reason=_reason)
