"""Activation functions inside recurrent operators, with their slopes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from popdist_onnx.graph import extents

if TYPE_CHECKING:
    from collections.abc import Callable

    from popdist_onnx.graph.tensor import Tensor


@dataclass(frozen=True)
class Activation:
    """A function and its slope.

    Attributes:
        value: From the argument to the result.
        slope: From argument and result to the derivative.
    """

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]


def _or(number: float | None, default: float) -> float:
    return default if number is None else number


def _affine(alpha: float | None, beta: float | None) -> Activation:
    a, b = _or(alpha, 1.0), _or(beta, 0.0)
    return Activation(lambda x: a * x + b, lambda x, _: extents.fill(x, a))


def _scaled_tanh(alpha: float | None, beta: float | None) -> Activation:
    a, b = _or(alpha, 1.0), _or(beta, 1.0)
    return Activation(lambda x: a * x.tape.Tanh(b * x), lambda _, y: a * b - (b / a) * (y * y))


def _leaky_relu(alpha: float | None, _: float | None) -> Activation:
    a = _or(alpha, 0.01)
    return Activation(
        lambda x: x.tape.LeakyRelu(x, alpha=a),
        lambda x, _: x.tape.Where(x > 0, x.tape.scalar(1, x.dtype), x.tape.scalar(a, x.dtype)),
    )


def _hard_sigmoid(alpha: float | None, beta: float | None) -> Activation:
    a, b = _or(alpha, 0.2), _or(beta, 0.5)

    def slope(x: Tensor, y: Tensor) -> Tensor:
        inside = x.tape.And(y > 0, y < 1)
        return a * x.tape.Cast(inside, to=x.dtype.value)

    return Activation(lambda x: x.tape.HardSigmoid(x, alpha=a, beta=b), slope)


def _elu(alpha: float | None, _: float | None) -> Activation:
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


def _softsign(_: float | None, __: float | None) -> Activation:
    def slope(x: Tensor, y: Tensor) -> Tensor:
        rest = 1 - x.tape.Abs(y)
        return rest * rest

    return Activation(lambda x: x.tape.Softsign(x), slope)


ACTIVATIONS: dict[str, Callable[[float | None, float | None], Activation]] = {
    "Sigmoid": lambda _, __: Activation(lambda x: x.tape.Sigmoid(x), lambda _, y: y * (1 - y)),
    "Tanh": lambda _, __: Activation(lambda x: x.tape.Tanh(x), lambda _, y: 1 - y * y),
    "Relu": lambda _, __: Activation(
        lambda x: x.tape.Relu(x), lambda x, y: x.tape.Cast(y > 0, to=x.dtype.value)
    ),
    "Affine": _affine,
    "LeakyRelu": _leaky_relu,
    "ThresholdedRelu": _thresholded,
    "ScaledTanh": _scaled_tanh,
    "HardSigmoid": _hard_sigmoid,
    "Elu": _elu,
    "Softsign": _softsign,
    "Softplus": lambda _, __: Activation(
        lambda x: x.tape.Softplus(x), lambda x, _: x.tape.Sigmoid(x)
    ),
}
"""From the name in ONNX to the function, given alpha and beta."""
