"""Operators of several tensors, element by element, with numpy's broadcasting; dropout.

Where a tensor was repeated to fit another, its gradient is summed over the copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.gradients.activations import step
from popdist_onnx.gradients.registry import At, gradient

if TYPE_CHECKING:
    from popdist_onnx.graph.tensor import Tensor
    from popdist_onnx.graph.values import Array


@gradient("Add", broadcasts=True)
def _add(at: At) -> list[Tensor]:
    return [at.g, at.g]


@gradient("Sub", broadcasts=True)
def _sub(at: At) -> list[Tensor | None]:
    return [at.g, -at.g if at.wants(1) else None]


@gradient("Mul", broadcasts=True)
def _mul(at: At) -> list[Tensor | None]:
    a, b = at.input(0), at.input(1)
    return [at.g * b if at.wants(0) else None, at.g * a if at.wants(1) else None]


@gradient("Div", broadcasts=True)
def _div(at: At) -> list[Tensor | None]:
    b = at.input(1)
    part = at.g / b
    return [part, -(part * at.y) if at.wants(1) else None]


@gradient("Pow", broadcasts=True)
def _pow(at: At) -> list[Tensor | None]:
    a, b = at.input(0), at.input(1)
    exponent = None if at.wants(1) else b.constant
    return [
        at.g * _slope_of_power(at, a, b, exponent) if at.wants(0) else None,
        at.g * _logarithmic_slope(at, a, b) if at.wants(1) else None,
    ]


def _slope_of_power(at: At, a: Tensor, b: Tensor, exponent: Array | None) -> Tensor:
    power = None if exponent is None or exponent.size != 1 else float(exponent.item())
    match power:
        case 2.0:
            return 2 * a
        case 3.0:
            return 3 * (a * a)
        case 0.5:
            return 0.5 / at.y
        case -1.0:
            return -(at.y * at.y)
        case None:
            # The exponent may be of another type, and zero to the power -1 must not spoil b = 0.
            typed = b if b.dtype == a.dtype else at.tape.Cast(b, to=a.dtype.value)
            zero = at.tape.scalar(0, a.dtype)
            return at.tape.Where(at.tape.Equal(typed, zero), zero, typed * a ** (typed - 1))
        case _:
            return a ** (power - 1) * power if power else a * 0


def _logarithmic_slope(at: At, a: Tensor, b: Tensor) -> Tensor:
    """The slope in the exponent is y log(a); it is zero where 0 is raised to 0 or more."""
    tape = at.tape
    vanishes = tape.And(tape.Equal(a, 0.0), b >= 0.0)
    return at.y * tape.Log(tape.Where(vanishes, tape.scalar(1, a.dtype), a))


@gradient("Mod", broadcasts=True)
def _mod(at: At) -> list[Tensor | None]:
    """A = q b + y with a whole q, so y falls by q as b grows."""
    if not at.wants(1):
        return [at.g, None]
    quotient = at.tape.Round((at.input(0) - at.y) / at.input(1))
    return [at.g, -(at.g * quotient)]


@gradient("Sum", broadcasts=True)
def _sum(at: At) -> list[Tensor]:
    return [at.g for _ in at.node.inputs]


@gradient("Mean", broadcasts=True)
def _mean(at: At) -> list[Tensor]:
    share = at.g / float(len(at.node.inputs))
    return [share for _ in at.node.inputs]


@gradient("Max", "Min", broadcasts=True)
def _extreme(at: At) -> list[Tensor]:
    """Equal operands share the gradient."""
    if len(at.node.inputs) == 1:
        return [at.g]
    hits = [step(at, at.tape.Equal(at.input(i), at.y)) for i in range(len(at.node.inputs))]
    share = at.g / at.tape.Sum(*hits)
    return [share * hit for hit in hits]


@gradient("Where", inputs=(1, 2), broadcasts=True)
def _where(at: At) -> list[Tensor | None]:
    condition, zero = at.x, at.tape.scalar(0, at.g.dtype)
    return [
        None,
        at.tape.Where(condition, at.g, zero) if at.wants(1) else None,
        at.tape.Where(condition, zero, at.g) if at.wants(2) else None,
    ]


@gradient("Clip", broadcasts=True)
def _clip(at: At) -> list[Tensor | None]:
    """Each element's gradient goes to what the element is: x or a limit, as in torch.

    At a limit it goes to x. Where the limits cross, the upper one is the result.
    """
    tape, x, low, high = at.tape, at.x, at.optional(1), at.optional(2)
    zero = tape.scalar(0, at.g.dtype)
    inside = [x >= low] if low is not None else []
    inside += [x <= high] if high is not None else []
    if not inside:
        return [at.g]
    both = inside[0] if len(inside) == 1 else tape.And(*inside)
    edges: list[Tensor | None] = [tape.Where(both, at.g, zero), None, None]
    if low is not None and at.wants(1):
        below = x < low if high is None else tape.And(x < low, low <= high)
        edges[1] = tape.Where(below, at.g, zero)
    if high is not None and at.wants(2):
        above = x > high if low is None else tape.Or(x > high, low > high)
        edges[2] = tape.Where(above, at.g, zero)
    return edges[: len(at.node.inputs)]


# Dropout: what was dropped passes no gradient.


@gradient("Dropout", inputs=(0,))
def _dropout(at: At) -> Tensor:
    """Training sessions replace Dropout by a mask before this; what is left here passes all."""
    mode = at.optional(2)
    training = None if mode is None else mode.constant
    if mode is None or (training is not None and not training.item()):
        return at.g
    raise at.refused(
        "it draws its own random numbers, which the backward half cannot see",
        "run transforms.randomness before autodiff; sessions do",
    )
