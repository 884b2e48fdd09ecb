"""Activation functions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from popdist_onnx.gradients.registry import At, gradient

if TYPE_CHECKING:
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
    """One where a condition holds, else zero, in the type of the node's first input.

    Args:
        at: The node.
        condition: The condition.

    Returns:
        The step.
    """
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
def _gelu(at: At) -> Tensor:
    if at.get("approximate", "none") == "tanh":
        return gelu_tanh(at)
    x, tape = at.x, at.tape
    normal = 0.5 * (1 + tape.Erf(x / math.sqrt(2)))
    density = tape.Exp(x * x * -0.5) / math.sqrt(2 * math.pi)
    return at.g * (normal + x * density)


def gelu_tanh(at: At) -> Tensor:
    """Gradient of x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x x x).

    Args:
        at: The node.

    Returns:
        The gradient of its input.
    """
    x, c = at.x, math.sqrt(2 / math.pi)
    square = x * x
    t = at.tape.Tanh(x * (square * (0.044715 * c) + c))
    slope = square * (3 * 0.044715 * c) + c
    return at.g * (0.5 * (1 + t) + (0.5 * x) * (1 - t * t) * slope)
