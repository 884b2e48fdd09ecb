"""Activation functions: as operators, inside of recurrent ones, and softmax over an axis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from popdist_onnx.gradients.registry import At, Edges, gradient
from popdist_onnx.graph import shape_ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from popdist_onnx.graph.tensor import Tensor


_SELU_ALPHA = 1.67326319217681884765625
_SELU_GAMMA = 1.05070102214813232421875

# Times any positive normal number it is at least 1; ONNX Runtime does the rest in one kernel.
_STEEP = 3e38


def where_positive(at: At, value: Tensor) -> Tensor:
    """One where a tensor that is nowhere negative is positive, else zero.

    A steep HardSigmoid, max(0, min(1, 3e38 x)), is the fastest step function that ONNX Runtime's
    CPU kernels offer: one pass, in the tensor's own type.

    Args:
        at: The node.
        value: The tensor, for example the output of a Relu.

    Returns:
        The step.
    """
    return at.tape.HardSigmoid(value, alpha=_STEEP, beta=0.0)


def step(at: At, condition: Tensor) -> Tensor:
    """A condition as a mask of ones and zeros, in the dtype of the node's first input."""
    return at.tape.Cast(condition, to=at.x.dtype.value)


@gradient("Relu")
def _relu(at: At) -> Tensor:
    return at.g * where_positive(at, at.y)


@gradient("LeakyRelu")
def _leaky_relu(at: At) -> Tensor:
    return at.tape.Where(at.x > 0, at.g, at.g * at.get("alpha", 0.01))


@gradient("PRelu", broadcasts=True)
def _prelu(at: At) -> list[Tensor]:
    slope, zero = at.input(1), at.tape.scalar(0, at.x.dtype)
    positive = at.x > 0
    return [
        at.tape.Where(positive, at.g, at.g * slope),
        at.tape.Where(positive, zero, at.g * at.x),
    ]


@gradient("ThresholdedRelu")
def _thresholded_relu(at: At) -> Tensor:
    return at.g * step(at, at.x > at.get("alpha", 1.0))


@gradient("Shrink")
def _shrink(at: At) -> Tensor:
    return at.g * step(at, at.tape.Abs(at.x) > at.get("lambd", 0.5))


@gradient("Elu")
def _elu(at: At) -> Tensor:
    one = at.tape.scalar(1, at.x.dtype)
    return at.g * at.tape.Where(at.x > 0, one, at.y + at.get("alpha", 1.0))


@gradient("Selu")
def _selu(at: At) -> Tensor:
    alpha, gamma = at.get("alpha", _SELU_ALPHA), at.get("gamma", _SELU_GAMMA)
    slope = at.tape.scalar(gamma, at.x.dtype)
    return at.g * at.tape.Where(at.x > 0, slope, at.y + alpha * gamma)


@gradient("Celu")
def _celu(at: At) -> Tensor:
    """Y = a (exp(x / a) - 1) below zero, whose slope is exp(x / a)."""
    one = at.tape.scalar(1, at.x.dtype)
    return at.g * at.tape.Where(at.x > 0, one, at.tape.Exp(at.x / at.get("alpha", 1.0)))


@gradient("Sigmoid")
def _sigmoid(at: At) -> Tensor:
    return at.g * (at.y * (1 - at.y))


@gradient("HardSigmoid")
def _hard_sigmoid(at: At) -> Tensor:
    inside = at.tape.And(at.y > 0, at.y < 1)
    return at.g * (step(at, inside) * at.get("alpha", 0.2))


@gradient("HardSwish")
def _hard_swish(at: At) -> Tensor:
    """Y = x * h(x) with h = max(0, min(1, x / 6 + 1 / 2))."""
    gate = at.tape.HardSigmoid(at.x, alpha=1 / 6, beta=0.5)
    inside = at.tape.And(gate > 0, gate < 1)
    return at.g * (gate + step(at, inside) * at.x / 6)


@gradient("Softplus")
def _softplus(at: At) -> Tensor:
    return at.g * at.tape.Sigmoid(at.x)


@gradient("Softsign")
def _softsign(at: At) -> Tensor:
    below = 1 + at.tape.Abs(at.x)
    return at.g / (below * below)


@gradient("Mish")
def _mish(at: At) -> Tensor:
    """Y = x t with t = tanh(softplus(x)), whose slope is t + x s (1 - t t) with s = sigmoid(x)."""
    t = at.tape.Tanh(at.tape.Softplus(at.x))
    return at.g * (t + at.x * at.tape.Sigmoid(at.x) * (1 - t * t))


@gradient("Gelu")
def _gelu(at: At) -> Edges:
    return gelu(at, at.get("approximate", "none"))


def gelu(at: At, approximate: str) -> Edges:
    """The gradient of a Gelu, which is written again together with its slope.

    Both read most of what the other one calculates.

    Args:
        at: The node.
        approximate: ``none`` or ``tanh``, as in ONNX.

    Returns:
        The gradient of its input.
    """
    node, x, tape = at.node, at.x, at.tape
    written = _gelu_by_tanh if approximate == "tanh" else _gelu_by_erf
    with tape.at(node, f"{node.name or node.op_type}/", node.metadata_props):
        y, slope = written(x)
    edge = at.g * slope
    tape.substitute(node, [y])
    return {x.value: edge}


def _gelu_by_erf(x: Tensor) -> tuple[Tensor, Tensor]:
    """Y = x P(x) with the normal distribution P, whose slope is P(x) + x p(x)."""
    tape = x.tape
    u = x * math.sqrt(0.5)
    normal = tape.Erf(u) * 0.5 + 0.5
    density = tape.Exp(-0.5 * math.log(2 * math.pi) - u * u)
    y = x * normal
    return y, normal + x * density


def _gelu_by_tanh(x: Tensor) -> tuple[Tensor, Tensor]:
    """Y = x s with s = (1 + tanh(u)) / 2 = sigmoid(2 u) and u = sqrt(2 / pi) (x + 0.044715 x^3).

    The slope is s + x s (1 - s) 2 u'.
    """
    c = 2 * math.sqrt(2 / math.pi)
    square = x * x
    s = x.tape.Sigmoid(x * (square * (0.044715 * c) + c))
    y = x * s
    return y, s + (y - y * s) * (square * (3 * 0.044715 * c) + c)


# Activation functions inside recurrent operators, with their slopes.


@dataclass(frozen=True)
class Activation:
    """A function and its slope.

    Attributes:
        value: From the argument to the result.
        slope: From argument and result to the derivative.
        scaled_slope: From a factor and the result to their product with the derivative, where
            that takes fewer operations.
    """

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]
    scaled_slope: Callable[[Tensor, Tensor], Tensor] | None = None

    def times_slope(self, factor: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """A tensor times the slope."""
        if self.scaled_slope is not None:
            return self.scaled_slope(factor, y)
        return factor * self.slope(x, y)


def _or(number: float | None, default: float) -> float:
    return default if number is None else number


def _affine(alpha: float | None, beta: float | None) -> Activation:
    a, b = _or(alpha, 1.0), _or(beta, 0.0)
    return Activation(lambda x: a * x + b, lambda x, _: shape_ops.fill(x, a))


def _scaled_tanh(alpha: float | None, beta: float | None) -> Activation:
    a, b = _or(alpha, 1.0), _or(beta, 1.0)
    return Activation(lambda x: a * x.tape.Tanh(b * x), lambda _, y: a * b - (b / a) * (y * y))


def _leaky_relu_function(alpha: float | None, _: float | None) -> Activation:
    a = _or(alpha, 0.01)
    return Activation(
        lambda x: x.tape.LeakyRelu(x, alpha=a),
        lambda x, _: x.tape.Where(x > 0, x.tape.scalar(1, x.dtype), x.tape.scalar(a, x.dtype)),
    )


def _hard_sigmoid_function(alpha: float | None, beta: float | None) -> Activation:
    a, b = _or(alpha, 0.2), _or(beta, 0.5)

    def slope(x: Tensor, y: Tensor) -> Tensor:
        inside = x.tape.And(y > 0, y < 1)
        return a * x.tape.Cast(inside, to=x.dtype.value)

    return Activation(lambda x: x.tape.HardSigmoid(x, alpha=a, beta=b), slope)


def _elu_function(alpha: float | None, _: float | None) -> Activation:
    a = _or(alpha, 1.0)
    return Activation(
        lambda x: x.tape.Elu(x, alpha=a),
        lambda x, y: x.tape.Where(x > 0, x.tape.scalar(1, x.dtype), y + a),
    )


def _thresholded(alpha: float | None, _: float | None) -> Activation:
    a = _or(alpha, 1.0)
    return Activation(
        lambda x: x.tape.ThresholdedRelu(x, alpha=a),
        lambda x, _: x.tape.Cast(x > a, to=x.dtype.value),
    )


def _softsign_function(_: float | None, __: float | None) -> Activation:
    def slope(x: Tensor, y: Tensor) -> Tensor:
        rest = 1 - x.tape.Abs(y)
        return rest * rest

    return Activation(lambda x: x.tape.Softsign(x), slope)


def _sigmoid_function(_: float | None, __: float | None) -> Activation:
    def scaled_slope(factor: Tensor, y: Tensor) -> Tensor:
        scaled = y * factor
        return scaled - scaled * y

    return Activation(lambda x: x.tape.Sigmoid(x), lambda _, y: y * (1 - y), scaled_slope)


def _tanh_function(_: float | None, __: float | None) -> Activation:
    return Activation(
        lambda x: x.tape.Tanh(x),
        lambda _, y: 1 - y * y,
        lambda factor, y: factor - (factor * y) * y,
    )


ACTIVATIONS: dict[str, Callable[[float | None, float | None], Activation]] = {
    "Sigmoid": _sigmoid_function,
    "Tanh": _tanh_function,
    "Relu": lambda _, __: Activation(
        lambda x: x.tape.Relu(x), lambda x, y: x.tape.Cast(y > 0, to=x.dtype.value)
    ),
    "Affine": _affine,
    "LeakyRelu": _leaky_relu_function,
    "ThresholdedRelu": _thresholded,
    "ScaledTanh": _scaled_tanh,
    "HardSigmoid": _hard_sigmoid_function,
    "Elu": _elu_function,
    "Softsign": _softsign_function,
    "Softplus": lambda _, __: Activation(
        lambda x: x.tape.Softplus(x), lambda x, _: x.tape.Sigmoid(x)
    ),
}
"""From the name in ONNX to the function, given alpha and beta."""


# Softmax and its logarithm.


@gradient("Softmax")
def _softmax(at: At) -> Tensor:
    weighted = at.g * at.y
    total = at.tape.ReduceSum(weighted, [at.get("axis", -1)], keepdims=1)
    return weighted - at.y * total


@gradient("LogSoftmax")
def _log_softmax(at: At) -> Tensor:
    total = at.tape.ReduceSum(at.g, [at.get("axis", -1)], keepdims=1)
    return at.g - at.tape.Exp(at.y) * total


@gradient("LpNormalization")
def _lp_normalization(at: At) -> Tensor:
    """Y = x / n; the norm n is 0 only where x is, and there y is 0 as well."""
    tape, axis = at.tape, [at.get("axis", -1)]
    if at.get("p", 2) == 1:
        norm, slope = tape.ReduceL1(at.x, axis), tape.Sign(at.x)
    else:
        norm, slope = tape.ReduceL2(at.x, axis), at.y
    one = tape.scalar(1, at.x.dtype)
    safe = tape.Where(tape.Equal(norm, 0.0), one, norm)
    return (at.g - slope * tape.ReduceSum(at.g * at.y, axis, keepdims=1)) / safe
