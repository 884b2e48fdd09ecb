"""Operators that compute element by element, with one operand and with several."""
# ruff: noqa: C901, E731, PLR0912, TC003 - a table that is written as loops

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tests.popdist_onnx.conformance.case import (
    ANYWHERE,
    FROM_ONE,
    OUT,
    POSITIVE,
    WITHIN,
    Case,
    f,
    ints,
    pairs,
)

# One operand, element by element: what torch calls it, and where it is defined.

UNARY: dict[str, tuple[int, Callable[..., Any], np.ndarray]] = {
    "Abs": (6, torch.abs, ANYWHERE),
    "Acos": (7, torch.acos, WITHIN),
    "Acosh": (9, torch.acosh, FROM_ONE),
    "Asin": (7, torch.asin, WITHIN),
    "Asinh": (9, torch.asinh, ANYWHERE),
    "Atan": (7, torch.atan, ANYWHERE),
    "Atanh": (9, torch.atanh, WITHIN),
    "Ceil": (6, torch.ceil, ANYWHERE),
    "Cos": (7, torch.cos, ANYWHERE),
    "Cosh": (9, torch.cosh, ANYWHERE[1:-1]),
    "Elu": (6, functional.elu, ANYWHERE),
    "Erf": (9, torch.erf, ANYWHERE),
    "Exp": (6, torch.exp, ANYWHERE[:-1]),
    "Floor": (6, torch.floor, ANYWHERE),
    "Identity": (6, lambda x: x * 1, ANYWHERE),
    "LeakyRelu": (6, functional.leaky_relu, ANYWHERE),
    "Log": (6, torch.log, POSITIVE),
    "Neg": (6, torch.neg, ANYWHERE),
    "Reciprocal": (6, torch.reciprocal, POSITIVE),
    "Relu": (6, torch.relu, ANYWHERE),
    "Round": (11, torch.round, ANYWHERE),
    "Selu": (6, functional.selu, ANYWHERE),
    "Sigmoid": (6, torch.sigmoid, ANYWHERE),
    "Sign": (9, torch.sign, ANYWHERE),
    "Sin": (7, torch.sin, ANYWHERE),
    "Sinh": (9, torch.sinh, ANYWHERE[1:-1]),
    "Softplus": (6, functional.softplus, ANYWHERE),
    "Softsign": (6, functional.softsign, ANYWHERE),
    "Sqrt": (6, torch.sqrt, POSITIVE),
    "Tan": (7, torch.tan, WITHIN),
    "Tanh": (6, torch.tanh, ANYWHERE),
}


def unary() -> Iterator[Case]:
    for op_type, (since, function, points) in UNARY.items():
        for shape in ([-1], []):
            x = points[:1] if shape == [] else points
            yield Case(op_type, [x.reshape(shape)], since=since, torch=function, awkward=True)
        yield Case(op_type, [points[:0].reshape(0, 2)], since=since, torch=function, awkward=True)
    for alpha in (0.3, 1.7):
        yield Case(
            "Elu",
            [ANYWHERE],
            {"alpha": alpha},
            torch=lambda x, a=alpha: torch.where(x > 0, x, a * torch.expm1(x)),
        )
        yield Case(
            "LeakyRelu",
            [ANYWHERE],
            {"alpha": alpha},
            torch=lambda x, a=alpha: functional.leaky_relu(x, a),
        )
        yield Case(
            "ThresholdedRelu",
            [ANYWHERE],
            {"alpha": alpha},
            since=10,
            torch=lambda x, a=alpha: torch.where(x > a, x, 0 * x),
            awkward=True,
        )
        yield Case(
            "Selu",
            [ANYWHERE],
            {"alpha": alpha, "gamma": 1.2},
            torch=lambda x, a=alpha: 1.2 * torch.where(x > 0, x, a * torch.expm1(x)),
        )
        yield Case("HardSigmoid", [f(3, 4) * 4], {"alpha": alpha, "beta": 0.4})
        yield Case("Shrink", [f(3, 4)], {"lambd": alpha, "bias": 0.2}, since=9)
    yield Case("HardSigmoid", [f(3, 4) * 4])
    yield Case("Not", [np.array([True, False])], slope=False)
    yield Case("IsNaN", [np.array([1, np.nan, np.inf], np.float32)], since=9, slope=False)
    for setting in pairs(detect_negative=[OUT, 0, 1], detect_positive=[OUT, 0, 1]):
        yield Case(
            "IsInf", [np.array([1, -np.inf, np.inf], np.float32)], setting, since=10, slope=False
        )
    for dtype in (1, 6, 7, 9, 10, 11):
        yield Case(
            "Cast",
            [np.array([-2.5, 0, 1.5, 3], np.float32)],
            {"to": dtype},
            slope=dtype in (1, 11),
            torch=None if dtype not in (1, 11) else (lambda x: x * 1),
        )
    yield Case("Shape", [f(2, 0, 3)], slope=False)
    yield Case("Size", [f(2, 5)], slope=False)
    yield Case("NonZero", [np.array([[1, 0], [0, 2]], np.float32)], since=9, slope=False)


# Several operands, element by element, with numpy's broadcasting since opset 7.

SHAPES = [
    ([2, 3], [2, 3]),
    ([2, 3], [3]),
    ([1, 3], [2, 1]),
    ([2, 3], []),
    ([], [2, 3]),
    ([1], [2, 1, 3]),
    ([0, 3], [1]),
]


def binary() -> Iterator[Case]:
    functions = {"Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": torch.div}
    for op_type, function in functions.items():
        for one, other in SHAPES:
            yield Case(
                op_type, [f(*one), np.asarray(f(*other) + 3, np.float32)], since=7, torch=function
            )
        yield Case(op_type, [f(2, 3), f(2, 3) + 3], torch=function, until=6)
        yield Case(
            op_type,
            [f(2, 3, 4), f(3) + 3],
            {"broadcast": 1, "axis": 1},
            torch=lambda a, b, g=function: g(a, b[:, None]),
            until=6,
        )
        yield Case(op_type, [f(2, 3), f(3) + 3], {"broadcast": 1}, torch=function, until=6)
        for dtype in (np.int32, np.int64):
            a, b = np.array([7, -7, 8, 0], dtype), np.array([2, 2, -4, 5], dtype)
            yield Case(op_type, [a, b], since=7, slope=False)
    a = np.array([0, 0, 2, 3, 1.5, 0.5, 4], np.float32)
    b = np.array([1, 2, 0, -1, 2.5, 3, 0.5], np.float32)
    yield Case("Pow", [a, b], since=7, torch=torch.pow, awkward=True)
    yield Case(
        "Pow",
        [np.array([-2, -1, 3], np.float32), np.array([3.0], np.float32)],
        since=7,
        torch=lambda x, e: torch.pow(x, e.detach()),
        fixed=[1],
        awkward=True,
    )
    for exponent in (0, 1, 2, 3, 0.5, -1, -2.0, 2.5):
        x = np.abs(f(2, 3)) + 0.1
        yield Case(
            "Pow",
            [x, np.array(exponent, np.float32)],
            since=7,
            fixed=[1],
            torch=lambda x, e: torch.pow(x, e.detach()),
        )
    yield Case(
        "Pow",
        [np.abs(f(2, 3, 4)), f(3)],
        {"broadcast": 1, "axis": 1},
        until=6,
        torch=lambda a, b: torch.pow(a, b[:, None]),
    )
    for op_type in ("And", "Or", "Xor"):
        x, y = np.array([[True, False], [True, False]]), np.array([True, True])
        yield Case(op_type, [x, y], since=7, slope=False)
    for op_type, since in (("Equal", 7), ("Greater", 7), ("Less", 7)):
        for dtype in (np.int32, np.int64, np.float32):
            newer = since if dtype is not np.float32 or op_type != "Equal" else 11
            newer = 9 if dtype is not np.float32 and op_type != "Equal" else newer
            yield Case(
                op_type,
                [ints(1, 2, 3).astype(dtype), ints(2).astype(dtype)],
                since=newer,
                slope=False,
            )
    for op_type in ("Max", "Min", "Sum", "Mean"):
        for operands in ([f(2, 3)], [f(2, 3), f(2, 3)], [f(2, 3), f(2, 3), f(2, 3)]):
            yield Case(op_type, operands)
    yield Case("Mean", [f(2, 1), f(3), f(1, 1, 1)], since=8, torch=lambda *all_: sum(all_) / 3)
    yield Case("Sum", [f(2, 1), f(3), f(1, 1, 1)], since=8, torch=lambda *all_: sum(all_))
    yield Case("Max", [f(2, 1), f(3)], since=8, torch=torch.maximum)
    yield Case("Min", [f(2, 1), f(3)], since=8, torch=torch.minimum)
    tie = np.array([1, 2, 3], np.float32)
    for op_type, function in (("Max", torch.maximum), ("Min", torch.minimum)):
        yield Case(op_type, [tie, np.array([1, 3, 3], np.float32)], torch=function, awkward=True)
    for fmod, a, b in (
        (1, f(2, 3) * 5, f(3) + 3),
        (0, f(2, 3) * 5, f(3) + 3),
        (0, ints(7, -7, 7), ints(3, 3, -3)),
        (1, ints(7, -7, 7), ints(3, 3, -3)),
    ):
        float_ = a.dtype == np.float32
        yield Case(
            "Mod",
            [a, b],
            {"fmod": fmod},
            since=10,
            slope=float_,
            torch=None if not float_ else (torch.fmod if fmod else torch.remainder),
        )
    yield Case("PRelu", [f(2, 3, 4), f(3, 1)], since=7)
    yield Case("PRelu", [f(2, 3, 4), f(1)], since=7)
    yield Case(
        "PRelu",
        [ANYWHERE, np.array([0.5], np.float32)],
        since=7,
        torch=lambda x, s: torch.where(x > 0, x, x * s),
        awkward=True,
    )
    yield Case(
        "PRelu",
        [f(2, 3, 4), f(3)],
        until=6,
        torch=lambda x, s: torch.where(x > 0, x, x * s[:, None]),
    )
    yield Case("Where", [np.array([[True], [False]]), f(2, 3), f(3)], since=9)
    yield Case("Where", [np.array([True, False]), ints(1, 2), ints(3, 4)], since=9, slope=False)
    for direction in ("LEFT", "RIGHT"):
        yield Case(
            "BitShift",
            [ints(1, 8, dtype=np.uint32), ints(2, 1, dtype=np.uint32)],
            {"direction": direction},
            since=11,
            slope=False,
        )
    points = np.array([-2, -1, 0, 1, 2], np.float32)
    for low, high in ((-1, 1), (None, 1), (-1, None), (None, None)):
        limits = {n: float(v) for n, v in (("min", low), ("max", high)) if v is not None}
        slope = lambda x, *_, low=low, high=high: (
            torch.clamp(x, low, high) if low is not None or high is not None else x * 1
        )
        yield Case("Clip", [points], limits, until=10, torch=slope, awkward=True)
        operands = [None if one is None else np.array(one, np.float32) for one in (low, high)]
        yield Case("Clip", [points, *operands], since=11, torch=slope, fixed=[1, 2], awkward=True)
