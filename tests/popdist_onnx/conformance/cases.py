"""Every operator of ai.onnx that PopART offers, with combinations of its attributes, as data.

A case is one node. Combinations of attributes are pairwise; ``POPDIST_EXHAUSTIVE=1`` takes all.
"""
# ruff: noqa: ARG005, B008, C901, E731, PLR0912, PLR0915, TC003 - a table that is written as loops

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import torch
from torch.nn import functional

OPSETS = range(6, 12)
"""What PopART's builder has."""

EXHAUSTIVE = bool(os.environ.get("POPDIST_EXHAUSTIVE"))

RANDOM = np.random.default_rng(11)


@dataclass(eq=False)
class Case:
    """One node.

    Attributes:
        op_type: The operator.
        inputs: Operands; None leaves one out.
        attributes: Its attributes.
        outputs: How many outputs it has.
        since: The opsets in which it exists so.
        until: The last of them.
        torch: What torch makes of the operands in float64; without, ONNX's reference evaluator
            says what the node does, and differences of it what its slope is.
        slope: Whether there is a gradient to compare.
        awkward: Whether the point is one that formulas stumble over.
        tolerance: Relative to the largest element.
        read: Which outputs are compared; None takes all.
        fixed: Which floating-point inputs are constants of the graph.
        domain: The operator's domain.
        dtype: The type of its floating-point inputs.
        by_differences: Whether the slope is that of differences of the forward function, because
            torch's own gradient is another one.
    """

    op_type: str
    inputs: Sequence[Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    since: int = 6
    until: int = 11
    torch: Callable[..., Any] | None = None
    slope: bool = True
    awkward: bool = False
    tolerance: float = 3e-5
    read: Sequence[int] | None = None
    fixed: Sequence[int] = ()
    domain: str = ""
    dtype: str = "float32"
    by_differences: bool = False


def pairs(**values: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Combinations in which every two values of two names meet once at least.

    Args:
        **values: Values by name; `OUT` leaves a name out.

    Yields:
        Settings by name.
    """
    names = list(values)
    products = [dict(zip(names, one, strict=True)) for one in itertools.product(*values.values())]
    seen: set[Any] = set()
    order = (
        range(len(products)) if EXHAUSTIVE else np.random.default_rng(0).permutation(len(products))
    )
    for index in order:
        one = products[index]
        places = [(name, values[name].index(one[name])) for name in names]
        meets = set(itertools.combinations(places, 2)) or set(places)
        if EXHAUSTIVE or meets - seen:
            seen |= meets
            yield {name: value for name, value in one.items() if value is not OUT}


OUT = "left out"


def f(*shape: int) -> np.ndarray:
    """Numbers that are different, and no whole or half ones."""
    return np.asarray(RANDOM.standard_normal(shape), np.float32)


def ints(*numbers: int, dtype: Any = np.int64) -> np.ndarray:
    return np.array(numbers, dtype)


# One operand, element by element: what torch calls it, and where it is defined.

ANYWHERE = np.array([-30, -3, -1.5, -1, -0.5, -1e-6, 0, 1e-6, 0.5, 1, 1.5, 3, 30], np.float32)
WITHIN = np.array([-0.999, -0.5, -1e-6, 0, 0.3, 0.999], np.float32)
POSITIVE = np.array([1e-6, 0.1, 1, 2.5, 1e6], np.float32)
FROM_ONE = np.array([1.001, 1.5, 4, 1e4], np.float32)

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


# Reductions.

REDUCE = ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]


def reductions() -> Iterator[Case]:
    for name in REDUCE:
        op_type = f"Reduce{name}"
        points = lambda *s: np.abs(f(*s)) + 0.2
        for setting in pairs(axes=[OUT, [0], [1, 2], [2, 0], [0, 1, 2]], keepdims=[OUT, 0, 1]):
            yield Case(op_type, [points(2, 3, 4)], setting)
        yield Case(op_type, [points(2, 3)], {"axes": [-1], "keepdims": 0}, since=11)
        yield Case(op_type, [points(1, 3)], {"axes": [0]})
        yield Case(op_type, [np.abs(f(3))], {"keepdims": 0})
    ties = np.array([[1, 3, 3], [2, 2, 2]], np.float32)
    zeros = np.array([[0, 2, 3], [0, 0, 2], [1, 2, 3]], np.float32)
    yield Case(
        "ReduceMax",
        [ties],
        {"axes": [1]},
        torch=lambda x: torch.amax(x, 1, keepdim=True),
        awkward=True,
    )
    yield Case(
        "ReduceMin",
        [-ties],
        {"axes": [1]},
        torch=lambda x: torch.amin(x, 1, keepdim=True),
        awkward=True,
    )
    yield Case(
        "ReduceProd", [zeros], {"axes": [1]}, torch=lambda x: x.prod(1, keepdim=True), awkward=True
    )
    yield Case(
        "ReduceL2",
        [0 * zeros],
        {"axes": [1]},
        torch=lambda x: torch.linalg.vector_norm(x, dim=1, keepdim=True),
        awkward=True,
    )
    yield Case(
        "ReduceL1",
        [zeros],
        {"axes": [1]},
        torch=lambda x: x.abs().sum(1, keepdim=True),
        awkward=True,
    )
    yield Case(
        "ReduceLogSumExp",
        [zeros * 40],
        {"axes": [1]},
        torch=lambda x: x.logsumexp(1, keepdim=True),
        awkward=True,
    )
    for dtype in (np.int32, np.int64):
        for name in ("Max", "Min", "Sum", "Prod"):
            yield Case(
                f"Reduce{name}",
                [ints(3, -1, 2, 2).reshape(2, 2).astype(dtype)],
                {"axes": [1]},
                slope=False,
            )
    for op_type in ("ArgMax", "ArgMin"):
        for setting in pairs(axis=[OUT, 0, 1], keepdims=[OUT, 0, 1]):
            yield Case(op_type, [f(3, 4)], setting, slope=False)
        yield Case(op_type, [ties], {"axis": -1}, since=11, slope=False)
    for setting in pairs(exclusive=[OUT, 0, 1], reverse=[OUT, 0, 1]):
        for axis in (0, 1, -1):
            yield Case("CumSum", [f(3, 4), np.array(axis)], setting, since=11)
    for since, axes in ((6, [0, 1, 2]), (11, [-1])):
        for axis in axes:
            for op_type in ("Softmax", "LogSoftmax"):
                yield Case(
                    op_type,
                    [f(2, 3, 4) * 3],
                    {"axis": axis},
                    since=since,
                    torch=lambda x, a=axis, o=op_type: _coerced(x, a, o),
                )
            yield Case(
                "Hardmax",
                [f(2, 3, 4)],
                {"axis": axis},
                since=since,
                slope=False,
                torch=lambda x, a=axis: _coerced(x, a, "Hardmax"),
            )
    yield Case("Softmax", [f(2, 3)], torch=lambda x: x.softmax(1))
    yield Case("LogSoftmax", [f(2, 3)], torch=lambda x: x.log_softmax(1))
    yield Case("Hardmax", [f(2, 3)], slope=False)
    for op_type, function in (("Softmax", torch.softmax), ("LogSoftmax", torch.log_softmax)):
        yield Case(
            op_type,
            [np.array([[1000, -1000, 0], [0, 0, 0]], np.float32)],
            {"axis": 1},
            torch=lambda x, g=function: g(x, 1),
            awkward=True,
        )
    for setting in pairs(axis=[OUT, 0, 1, -1], p=[OUT, 1, 2]):
        p, axis = setting.get("p", 2), setting.get("axis", -1)
        yield Case(
            "LpNormalization",
            [f(3, 4)],
            setting,
            torch=lambda x, p=p, a=axis: functional.normalize(x, p, a),
        )
    yield Case(
        "LpNormalization",
        [zeros],
        {"axis": 1, "p": 2},
        awkward=True,
        torch=lambda x: functional.normalize(x, dim=1),
    )
    for axes in (OUT, [0, 2, 3], [1]):
        over = [0, 2, 3] if axes is OUT else axes
        scaled = lambda x, a=over: (
            (x - x.mean(a, keepdim=True)) / (x.var(a, correction=0, keepdim=True).sqrt() + 1e-9)
        )
        yield Case(
            "MeanVarianceNormalization",
            [f(2, 3, 4, 2)],
            {} if axes is OUT else {"axes": axes},
            since=9,
            tolerance=3e-4,
            torch=scaled,
        )


# Elements moved, taken and put.


def layout() -> Iterator[Case]:
    yield Case("Det", [f(2, 3, 3)], since=11, torch=torch.linalg.det)
    # A slice backwards to the end is empty; one element of all axes has no axis.
    for end in (2**31 - 1, 2**63 - 1):
        operands = [f(2, 4), ints(3), ints(end), ints(1), ints(-1)]
        yield Case("Slice", operands, since=10, awkward=True, torch=lambda x, *_: x[:, :0] * 1)
    yield Case(
        "GatherND",
        [f(2, 3, 2), ints(1, 2, 0)],
        since=11,
        awkward=True,
        torch=lambda x, _: x[1, 2, 0],
    )
    for depth in (ints(3), ints(3, dtype=np.int32)):
        yield Case(
            "OneHot",
            [np.array([2, 0], np.float32), depth, np.array([-1, 2], np.float32)],
            {"axis": 0},
            since=9,
            slope=False,
            awkward=True,
        )
    yield Case("Reshape", [f(2, 3, 4), ints(0, -1)])
    yield Case("Reshape", [f(2, 3), ints(3, 2)])
    yield Case("Reshape", [*[f(0, 3), ints(3, 0)][:1], ints(0, 3)], awkward=True)
    for axis in (0, 1, 2, 3):
        yield Case("Flatten", [f(2, 3, 4)], {"axis": axis})
    yield Case("Flatten", [f(2, 3, 4)], {"axis": -1}, since=11)
    yield Case("Flatten", [f(2, 3)])
    for axes in (OUT, [0], [0, 2]):
        yield Case("Squeeze", [f(1, 3, 1)], {} if axes is OUT else {"axes": axes})
    yield Case("Squeeze", [f(1, 3, 1)], {"axes": [-1]}, since=11)
    for axes in ([0], [1, 3], [0, 1]):
        yield Case("Unsqueeze", [f(2, 3)], {"axes": axes})
    yield Case("Unsqueeze", [f(2, 3)], {"axes": [-1]}, since=11)
    for perm in (OUT, [2, 0, 1], [0, 2, 1]):
        yield Case("Transpose", [f(2, 3, 4)], {} if perm is OUT else {"perm": perm})
    yield Case("Transpose", [np.array(2, np.float32)], awkward=True)
    for shape in ([2, 3, 4], [1], [3, 1]):
        yield Case("Expand", [f(3, 1), ints(*shape)], since=8)
    yield Case("Tile", [f(2, 3), ints(2, 1)])
    yield Case("Tile", [f(2, 3), ints(2, 0)], awkward=True)
    for axis in (0, 1):
        yield Case("Concat", [f(2, 3), f(2, 3), f(2, 3)], {"axis": axis})
    yield Case("Concat", [f(2, 3), f(2, 1), f(2, 0)], {"axis": 1}, awkward=True)
    yield Case("Concat", [f(2, 3), f(2, 1)], {"axis": -1}, since=11)
    yield Case("Concat", [f(2, 3)], {"axis": 0})
    yield Case("Split", [f(6, 2)], {"axis": 0, "split": [2, 4]}, outputs=2)
    yield Case("Split", [f(6, 2)], outputs=3)
    yield Case("Split", [f(2, 6)], {"axis": -1, "split": [1, 5]}, outputs=2, since=11)
    starts = [([1], [3], [0]), ([0, -3], [2, 100], [0, 1]), ([1], [1], [0]), ([-2], [-1], [1])]
    for start, end, axes in starts:
        yield Case("Slice", [f(4, 5)], {"starts": start, "ends": end, "axes": axes}, until=9)
        yield Case("Slice", [f(4, 5), ints(*start), ints(*end), ints(*axes)], since=10)
    yield Case("Slice", [f(4, 5)], {"starts": [1], "ends": [3]}, until=9)
    yield Case("Slice", [f(4, 5), ints(3, 4), ints(-100, 0), ints(0, 1), ints(-1, -2)], since=10)
    yield Case("Slice", [f(4, 5), ints(1), ints(4), ints(-1), ints(2)], since=11)
    yield Case("Slice", [f(4, 5), ints(1, dtype=np.int32), ints(4, dtype=np.int32)], since=10)
    for mode in ("constant", "reflect", "edge"):
        for pads in ([1, 0, 0, 2], [0, 1, 1, 1]):
            yield Case("Pad", [f(3, 4)], {"pads": pads, "mode": mode}, until=10)
            yield Case("Pad", [f(3, 4), ints(*pads)], {"mode": mode}, since=11)
    yield Case("Pad", [f(3, 4)], {"pads": [1, 0, 0, 2], "value": 1.5}, until=10)
    yield Case("Pad", [f(3, 4), ints(1, 0, 0, 2), np.array(1.5, np.float32)], since=11, fixed=[2])
    yield Case(
        "Pad",
        [f(3, 4), ints(0, -1, 0, 1)],
        since=11,
        awkward=True,
        torch=lambda x, p: functional.pad(x, (-1, 1)),
    )
    yield Case("SpaceToDepth", [f(1, 2, 4, 6)], {"blocksize": 2})
    yield Case("DepthToSpace", [f(1, 8, 2, 3)], {"blocksize": 2}, until=10)
    for mode in (OUT, "DCR", "CRD"):
        yield Case(
            "DepthToSpace",
            [f(1, 8, 2, 3)],
            {"blocksize": 2} | ({} if mode is OUT else {"mode": mode}),
            since=11,
        )
    for index in (
        ints(0, 2, 2),
        ints(1),
        np.array(1),
        np.array([[0, 1], [2, 2]]),
        ints(0, 1, dtype=np.int32),
        np.zeros([0], np.int64),
    ):
        for axis in (0, 1):
            taken = lambda x, i, a=axis: x.index_select(a, i.reshape(-1).long()).reshape(
                [*x.shape[:a], *i.shape, *x.shape[a + 1 :]]
            )
            yield Case(
                "Gather", [f(3, 4), index], {"axis": axis}, awkward=index.size == 0, torch=taken
            )
    yield Case("Gather", [f(3, 4), ints(-1, 0)], {"axis": -1}, since=11)
    for axis in (0, 1, -1):
        yield Case(
            "GatherElements",
            [f(3, 3), np.array([[0, 1, -1], [2, 0, 0]])],
            {"axis": axis},
            since=11,
            torch=lambda x, i, a=axis: (x if a == 0 else x[:2]).gather(a, i % 3),
            awkward=True,
        )
        yield Case(
            "ScatterElements",
            [f(3, 3), np.array([[0, 1, -1]]), f(1, 3)],
            {"axis": axis},
            since=11,
            torch=lambda x, i, u, a=axis: x.scatter(a, i % 3, u),
            awkward=True,
        )
    for axis in (0, 1):
        yield Case(
            "Scatter",
            [f(3, 3), np.array([[0, 1, 2]]), f(1, 3)],
            {"axis": axis},
            since=9,
            until=10,
            torch=lambda x, i, u, a=axis: x.scatter(a, i, u),
        )
    yield Case("GatherND", [f(3, 4, 2), np.array([[0, 1], [2, 3], [0, 1]])], since=11)
    yield Case("GatherND", [f(3, 4), np.array([[-1, 0]])], since=11, awkward=True)
    yield Case("ScatterND", [f(3, 4), np.array([[0], [2]]), f(2, 4)], since=11)
    for axis in (OUT, 0):
        yield Case(
            "Compress",
            [f(3, 2), np.array([True, False, True])],
            {} if axis is OUT else {"axis": axis},
            since=9,
        )
    for axis in (OUT, 0, 1, -1):
        for values in (f(2), ints(5, 7), ints(5, 7, dtype=np.int32)):
            yield Case(
                "OneHot",
                [ints(0, 2, -1), np.array(3), values],
                {} if axis is OUT else {"axis": axis},
                since=9,
                slope=values.dtype == np.float32,
            )
    yield Case("TopK", [f(3, 5)], {"k": 2}, outputs=2, until=9)
    yield Case("TopK", [f(3, 5)], {"k": 2, "axis": 0}, outputs=2, until=9)
    for setting in pairs(axis=[OUT, 0, 1], largest=[OUT, 0, 1], sorted=[OUT, 1]):
        since = 11 if set(setting) & {"largest", "sorted"} else 10
        yield Case("TopK", [f(3, 5), ints(2)], setting, outputs=2, since=since)
    for time, batch in ((0, 1), (1, 0)):
        yield Case(
            "ReverseSequence",
            [f(4, 4, 2), ints(3, 1, 4, 2)],
            {"time_axis": time, "batch_axis": batch},
            since=10,
        )
    yield Case("ConstantOfShape", [ints(2, 3)], since=9, slope=False)
    yield Case("EyeLike", [f(3, 4)], {"k": 1}, since=9, slope=False)
    yield Case("Range", [np.array(1), np.array(9), np.array(3)], since=11, slope=False)
    for setting in pairs(axis=[OUT, 0], sorted=[OUT, 0, 1]):
        yield Case("Unique", [ints(2, 1, 1, 3)], setting, outputs=4, since=11, slope=False)


# Products and windows.


def windows() -> Iterator[Case]:
    for a, b in (
        ([2, 3], [3, 4]),
        ([2, 2, 3], [3, 4]),
        ([3], [3, 4]),
        ([2, 3], [3]),
        ([3], [3]),
        ([2, 1, 2, 3], [3, 3, 4]),
    ):
        yield Case("MatMul", [f(*a), f(*b)])
    for setting in pairs(
        transA=[OUT, 0, 1], transB=[OUT, 0, 1], alpha=[OUT, 0.5], beta=[OUT, 2.0, 0.0]
    ):
        a = f(3, 2) if setting.get("transA") == 1 else f(2, 3)
        b = f(4, 3) if setting.get("transB") == 1 else f(3, 4)
        yield Case("Gemm", [a, b, f(2, 4)], setting, since=7)
        yield Case("Gemm", [a, b, f(4)], setting, since=7)
        yield Case("Gemm", [a, b, f(2, 1)], setting, since=7)
    yield Case("Gemm", [f(2, 3), f(3, 4)], since=11)
    yield Case(
        "Gemm", [f(2, 3), f(3, 4), f(4)], {"broadcast": 1}, until=6, torch=lambda a, b, c: a @ b + c
    )
    for setting in pairs(
        pads=[OUT, [1, 0, 0, 1], [1, 1, 1, 1]],
        strides=[OUT, [2, 1], [3, 2]],
        dilations=[OUT, [1, 2]],
        group=[1, 2],
    ):
        group = setting["group"]
        x, w, b = f(2, 4, 6, 5), f(4, 4 // group, 3, 2), f(4)
        settings = lambda s=setting: (
            tuple(s.get("strides", [1, 1])),
            tuple(s.get("dilations", [1, 1])),
            s["group"],
        )
        pads = setting.get("pads", [0] * 4)
        around = (pads[1], pads[3], pads[0], pads[2])
        yield Case(
            "Conv",
            [x, w, b],
            setting,
            torch=lambda x, w, b, s=settings(), p=around: functional.conv2d(
                functional.pad(x, p), w, b, s[0], 0, s[1], s[2]
            ),
            tolerance=2e-4,
        )
        yield Case(
            "ConvTranspose",
            [f(2, 4, 3, 3), f(4, 3, 3, 2), f(3 * group)],
            setting,
            torch=lambda x, w, b, s=settings(), p=pads: _crop(
                functional.conv_transpose2d(x, w, b, s[0], 0, 0, s[2], s[1]), p
            ),
            tolerance=2e-4,
        )
    for auto in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        for length, stride in ((5, 2), (6, 2), (5, 1)):
            setting = {"auto_pad": auto, "strides": [stride], "kernel_shape": [2]}
            pads = _same(length, stride, 2, auto)
            yield Case(
                "Conv",
                [f(1, 2, length), f(2, 2, 2)],
                setting,
                torch=lambda x, w, p=pads, s=stride: functional.conv1d(
                    functional.pad(x, p), w, None, s
                ),
            )
            yield Case(
                "MaxPool",
                [f(1, 2, length)],
                setting,
                torch=lambda x, p=pads, s=stride: functional.max_pool1d(
                    functional.pad(x, p, value=-1e9), 2, s
                ),
            )
            yield Case(
                "AveragePool",
                [f(1, 2, length)],
                setting,
                torch=lambda x, p=pads, s=stride: (
                    functional.avg_pool1d(functional.pad(x, p), 2, s)
                    / functional.avg_pool1d(functional.pad(torch.ones_like(x), p), 2, s)
                ),
            )
            yield Case(
                "LpPool",
                [np.abs(f(1, 2, length)) + 0.1],
                setting,
                torch=lambda x, p=pads, s=stride: functional.lp_pool1d(
                    functional.pad(x, p), 2.0, 2, s
                ),
            )
    for shape, kernel, stride in (([1, 1, 3], [3], 2), ([1, 1, 4], [2], 1)):
        for auto in ("SAME_UPPER", "SAME_LOWER"):
            yield Case(
                "ConvTranspose",
                [f(*shape), f(1, 1, *kernel)],
                {"auto_pad": auto, "strides": [stride]},
                since=11,
            )
    yield from _stated_lengths(f)
    for extra in ([1, 0], [1, 1]):
        yield Case(
            "ConvTranspose",
            [f(1, 2, 3, 3), f(2, 1, 3, 3)],
            {"strides": [2, 2], "output_padding": extra},
            torch=lambda x, w, e=tuple(extra): functional.conv_transpose2d(x, w, None, 2, 0, e),
        )
    for setting in pairs(
        ceil_mode=[0, 1],
        pads=[OUT, [1, 1, 1, 1]],
        strides=[[1, 1], [2, 2], [3, 2]],
        kernel_shape=[[2, 2], [3, 3]],
        count_include_pad=[0, 1],
    ):
        if any(s > k for s, k in zip(setting["strides"], setting["kernel_shape"], strict=True)):
            continue
        pad = 1 if "pads" in setting else 0
        kernel, strides, ceil = (
            setting["kernel_shape"],
            setting["strides"],
            bool(setting["ceil_mode"]),
        )
        counted = setting["count_include_pad"]
        average = lambda x, k=kernel, s=strides, p=pad, c=ceil, i=counted: functional.avg_pool2d(
            x, k, s, p, c, bool(i)
        )
        yield Case("AveragePool", [f(1, 2, 6, 7)], setting, since=10, torch=average)
        most = {name: value for name, value in setting.items() if name != "count_include_pad"}
        largest = lambda x, k=kernel, s=strides, p=pad, c=ceil: functional.max_pool2d(
            x, k, s, p, 1, c
        )
        yield Case("MaxPool", [f(1, 2, 6, 7)], most, since=10, torch=largest)
    # Rounding up makes a window in the padding along one axis, and one beyond it along the other.
    for counted in (0, 1):
        late = {
            "ceil_mode": 1,
            "pads": [1, 1, 1, 1],
            "strides": [2, 2],
            "kernel_shape": [3, 2],
            "count_include_pad": counted,
        }
        yield Case(
            "AveragePool",
            [f(1, 2, 6, 7)],
            late,
            since=10,
            awkward=True,
            torch=lambda x, i=counted: functional.avg_pool2d(x, (3, 2), 2, 1, True, bool(i)),  # noqa: FBT003
        )
    yield Case(
        "MaxPool",
        [f(1, 2, 6, 7)],
        {name: value for name, value in late.items() if name != "count_include_pad"},
        since=10,
        awkward=True,
        torch=lambda x: functional.max_pool2d(x, (3, 2), 2, 1, 1, True),  # noqa: FBT003
    )
    yield Case(
        "MaxPool",
        [f(1, 1, 8)],
        {"kernel_shape": [2], "dilations": [3]},
        since=10,
        torch=lambda x: functional.max_pool1d(x, 2, 1, 0, 3),
    )
    yield Case(
        "MaxPool",
        [np.ones([1, 1, 4, 4], np.float32)],
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        torch=lambda x: functional.max_pool2d(x, 2),
        awkward=True,
    )
    yield Case(
        "MaxPool",
        [f(1, 1, 4, 4)],
        {"kernel_shape": [2, 2]},
        torch=lambda x: functional.max_pool2d(x, 2, 1),
    )
    yield Case(
        "AveragePool", [f(1, 1, 4, 4)], {"kernel_shape": [2, 2], "pads": [1, 1, 0, 0]}, since=7
    )
    for p in (OUT, 1, 2, 3):
        setting = {} if p is OUT else {"p": p}
        yield Case(
            "LpPool",
            [np.abs(f(1, 2, 4, 4)) + 0.1],
            {"kernel_shape": [2, 2], **setting},
            torch=lambda x, p=2 if p is OUT else p: functional.lp_pool2d(x, float(p), 2, 1),
        )
        yield Case(
            "GlobalLpPool",
            [np.abs(f(1, 2, 3, 3)) + 0.1],
            setting,
            torch=lambda x, p=2 if p is OUT else p: (x**p).sum((2, 3), keepdim=True) ** (1 / p),
        )
    yield Case("GlobalAveragePool", [f(2, 3, 2, 2)])
    yield Case("GlobalMaxPool", [f(2, 3, 2, 2)], torch=lambda x: x.amax((2, 3), keepdim=True))
    # Windows shorter than their steps need no padding.
    for auto in ("SAME_UPPER", "SAME_LOWER"):
        setting = {"auto_pad": auto, "strides": [3, 2], "kernel_shape": [1, 1]}
        for op_type in ("MaxPool", "AveragePool"):
            yield Case(
                op_type,
                [f(1, 2, 6, 4)],
                setting,
                torch=lambda x: x[:, :, ::3, ::2] * 1,
                awkward=True,
            )
    for shape in ([2, 5], [2, 4, 3], [1, 3, 2, 2, 2]):
        yield Case(
            "LRN",
            [f(*shape)],
            {"size": 3, "alpha": 0.5},
            torch=lambda x: functional.local_response_norm(
                x.reshape(*x.shape[:2], -1), 3, 0.5
            ).reshape(x.shape),
            awkward=True,
        )
    yield Case("LRN", [f(3, 3, 2, 2)], {"size": 3})
    yield Case("LRN", [f(4, 4, 2, 2)], {"size": 2, "alpha": 0.5, "beta": 0.6, "bias": 2.0})
    for epsilon in (OUT, 0.1):
        setting = {} if epsilon is OUT else {"epsilon": epsilon}
        e = 1e-5 if epsilon is OUT else epsilon
        yield Case(
            "InstanceNormalization",
            [f(2, 3, 4), f(3), f(3)],
            setting,
            torch=lambda x, s, b, e=e: functional.instance_norm(x, None, None, s, b, eps=e),
            tolerance=1e-3,
        )
        yield Case(
            "BatchNormalization",
            [f(2, 3, 4), f(3), f(3), f(3), np.abs(f(3)) + 0.5],
            setting,
            fixed=[3, 4],
            since=7,
            torch=lambda x, s, b, m, v, e=e: functional.batch_norm(
                x, m.detach(), v.detach(), s, b, eps=e
            ),
            tolerance=1e-3,
        )
    yield Case(
        "Upsample",
        [f(1, 1, 2, 3)],
        {"mode": "nearest", "scales": [1.0, 1.0, 2.0, 1.5]},
        since=7,
        until=8,
        torch=lambda x: functional.interpolate(x, scale_factor=(2, 1.5)),
    )
    yield Case(
        "Upsample",
        [f(1, 1, 2, 3), np.array([1, 1, 2, 1.5], np.float32)],
        {"mode": "nearest"},
        since=9,
        until=9,
        fixed=[1],
        torch=lambda x, _: functional.interpolate(x, scale_factor=(2, 1.5)),
    )
    yield Case(
        "Resize",
        [f(1, 1, 4, 4), np.array([1, 1, 2, 0.6], np.float32)],
        {"mode": "nearest"},
        since=10,
        until=10,
        fixed=[1],
        torch=lambda x, _: functional.interpolate(x, scale_factor=(2, 0.6)),
    )
    yield Case(
        "Resize",
        [f(1, 1, 4, 4), np.array([1, 1, 2, 0.6], np.float32)],
        {"mode": "linear"},
        since=10,
        until=10,
        fixed=[1],
        torch=_asymmetric,
    )
    places = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
    for setting in pairs(
        mode=["nearest", "linear", "cubic"],
        coordinate_transformation_mode=places,
        nearest_mode=[OUT, "round_prefer_ceil", "floor", "ceil"],
        exclude_outside=[0, 1],
        cubic_coeff_a=[OUT, -0.5],
    ):
        if setting["mode"] != "cubic":
            setting["exclude_outside"] = 0
        for scales in ([1, 1, 1.7, 0.6], [1, 1, 2, 3]):
            yield Case(
                "Resize",
                [f(1, 1, 2, 3), None, np.array(scales, np.float32)],
                setting,
                since=11,
                fixed=[2],
            )


def older() -> Iterator[Case]:
    """Forms that newer opsets changed."""
    x, y = np.array([[True, False], [True, False]]), np.array([True, False])
    for op_type, function in (("And", "__and__"), ("Or", "__or__"), ("Xor", "__xor__")):
        for axis in (0, 1):
            turned = (
                (lambda a, b, g=function: getattr(a, g)(b[:, None]))
                if axis == 0
                else (lambda a, b, g=function: getattr(a, g)(b))
            )
            yield Case(
                op_type, [x, y], {"broadcast": 1, "axis": axis}, until=6, torch=turned, slope=False
            )
    for op_type, function in (("Equal", torch.eq), ("Greater", torch.gt), ("Less", torch.lt)):
        kind = np.int32 if op_type == "Equal" else np.float32
        operands = [ints(1, 2, 3, 1).reshape(2, 2).astype(kind), ints(1, 2).astype(kind)]
        yield Case(
            op_type,
            operands,
            {"broadcast": 1, "axis": 0},
            until=6,
            torch=lambda a, b, g=function: g(a, b[:, None]),
            slope=False,
        )
    for pads in ([1, 1], [1, 0]):
        most = lambda x, p=tuple(pads): functional.max_pool1d(
            functional.pad(x, p, value=-1e9), 2, 1
        )
        yield Case("MaxPool", [f(1, 2, 4)], {"kernel_shape": [2], "pads": pads}, torch=most)
        for counted in (0, 1):
            sums = lambda x, p=tuple(pads): 2 * functional.avg_pool1d(functional.pad(x, p), 2, 1)
            mean = lambda x, c=counted, g=sums: g(x) / (2 if c else g(torch.ones_like(x)))
            if not counted:
                plain = {"kernel_shape": [2], "pads": pads}
                yield Case("AveragePool", [f(1, 2, 4)], plain, torch=mean)
            yield Case(
                "AveragePool",
                [f(1, 2, 4)],
                {"kernel_shape": [2], "pads": pads, "count_include_pad": counted},
                since=7,
                torch=mean,
            )
    for auto, cut in (("SAME_UPPER", slice(1, None)), ("SAME_LOWER", slice(0, -1))):
        # An odd padding of 1 is cut off at one end, which opset 11 exchanged.
        whole = lambda x, w, c=cut: functional.conv_transpose1d(x, w)[..., c]
        yield Case(
            "ConvTranspose",
            [f(1, 1, 4), f(1, 1, 2)],
            {"auto_pad": auto, "strides": [1]},
            until=10,
            torch=whole,
        )
    for trans_a, trans_b in ((0, 1), (1, 0)):
        a, b = f(*((3, 2) if trans_a else (2, 3))), f(*((4, 3) if trans_b else (3, 4)))
        product = lambda a, b, c, t=trans_a, u=trans_b: (
            0.5 * (a.T if t else a) @ (b.T if u else b) + 2 * c
        )
        yield Case(
            "Gemm",
            [a, b, f(4)],
            {"transA": trans_a, "transB": trans_b, "alpha": 0.5, "beta": 2.0, "broadcast": 1},
            until=6,
            torch=product,
        )
    normal = lambda x, s, b, m, v: functional.batch_norm(x, m.detach(), v.detach(), s, b, eps=0.1)
    yield Case(
        "BatchNormalization",
        [f(2, 3, 4), f(3), f(3), f(3), np.abs(f(3)) + 0.5],
        {"epsilon": 0.1, "is_test": 1},
        fixed=[3, 4],
        until=6,
        torch=normal,
        tolerance=1e-3,
    )


def _coerced(x: torch.Tensor, axis: int, op_type: str) -> torch.Tensor:
    """Until opset 12 everything from the axis on is one dimension."""
    axis %= x.ndim
    flat = x.reshape(int(np.prod(x.shape[:axis], dtype=int)), -1)
    if op_type == "Hardmax":
        made = functional.one_hot(flat.argmax(1), flat.shape[1]).to(x.dtype)
    else:
        made = flat.softmax(1) if op_type == "Softmax" else flat.log_softmax(1)
    return made.reshape(x.shape)


def _same(length: int, stride: int, kernel: int, auto: str) -> tuple[int, int]:
    """The padding that ONNX's text gives an axis."""
    if auto == "VALID":
        return 0, 0
    total = max(0, (-(-length // stride) - 1) * stride + kernel - length)
    small, large = total // 2, total - total // 2
    return (small, large) if auto == "SAME_UPPER" else (large, small)


def _stated_lengths(f: Any) -> Iterator[Case]:
    """Transposed convolutions of stated lengths: more or less than the windows make, odd or even.

    The text of opset 11 puts the larger half of an odd padding first, with SAME_UPPER last.
    """
    for size, stride, dilation, extra in (
        *((1, 1, 1, 0), (2, 1, 1, 0), (3, 2, 1, 0), (3, 2, 2, 1), (1, 2, 1, 0)),
        *((2, 1, 2, 1), (3, 3, 1, 1), (1, 3, 2, 1)),
    ):
        whole = 3 * stride + (size - 1) * dilation + 1 + extra
        wanted = {"SAME_UPPER": 4 * stride, "SAME_LOWER": 4 * stride}
        stated = {f"{more:+}": whole + more for more in (-3, -2, -1, 0, 2) if whole + more > 0}
        for name, length in {**wanted, **stated}.items():
            total = max(whole - length, 0)
            first = total // 2 if name == "SAME_UPPER" else total - total // 2
            setting = {"strides": [stride], "dilations": [dilation], "output_padding": [extra]}
            setting |= {"auto_pad": name} if name in wanted else {"output_shape": [length]}
            yield Case(
                "ConvTranspose",
                [f(2, 2, 4), f(2, 3, size), f(3)],
                setting,
                since=11,
                torch=lambda x, w, b, s=stride, d=dilation, first=first, n=length: (
                    functional.pad(
                        functional.conv_transpose1d(x, w, None, s, 0, 0, 1, d)[..., first:],
                        (0, n),
                    )[..., :n]
                    + b[:, None]
                ),
            )


def _crop(x: torch.Tensor, pads: Sequence[int]) -> torch.Tensor:
    return x[:, :, pads[0] : x.shape[2] - pads[2], pads[1] : x.shape[3] - pads[3]]


def _asymmetric(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Linear weights at places that begin at 0."""
    for axis, (scale, made) in enumerate(((2.0, 8), (float(np.float32(0.6)), 2)), start=2):
        places = torch.arange(made, dtype=torch.float64) / scale
        low = places.floor().long().clamp(max=x.shape[axis] - 1)
        high = (low + 1).clamp(max=x.shape[axis] - 1)
        part = (places - places.floor()).reshape([-1 if one == axis else 1 for one in range(4)])
        x = x.index_select(axis, low) * (1 - part) + x.index_select(axis, high) * part
    return x


def empty() -> Iterator[Case]:
    """Tensors without elements."""
    yield Case("MatMul", [f(0, 3), f(3, 2)], torch=torch.matmul)
    yield Case("MatMul", [f(2, 0), f(0, 3)], torch=torch.matmul)
    yield Case("Gemm", [f(0, 3), f(3, 2), f(2)], since=7, torch=lambda a, b, c: a @ b + c)
    yield Case("Softmax", [f(0, 3)], {"axis": 1}, torch=lambda x: x.softmax(1))
    yield Case("ReduceSum", [f(0, 3)], {"axes": [0]}, torch=lambda x: x.sum(0, keepdim=True))
    yield Case("ReduceMax", [f(0, 3)], {"axes": [1]}, torch=lambda x: x.amax(1, keepdim=True))
    yield Case("ReduceMean", [f(0, 3)], {"axes": [1]}, torch=lambda x: x.mean(1, keepdim=True))
    yield Case("Flatten", [f(2, 0, 3)], torch=lambda x: x.flatten(1))
    yield Case("Transpose", [f(0, 3)], torch=lambda x: x.T)
    yield Case("Unsqueeze", [f(0, 3)], {"axes": [0]}, torch=lambda x: x[None])
    yield Case("Squeeze", [f(0, 1)], {"axes": [1]}, torch=lambda x: x[:, 0])
    yield Case("Expand", [f(1, 0), ints(3, 0)], since=8, torch=lambda x, _: x.expand(3, 0))
    yield Case("Where", [np.zeros([0], bool), f(0), f(1)], since=9, torch=torch.where)
    yield Case("Conv", [f(0, 2, 5), f(3, 2, 2), f(3)], torch=functional.conv1d)
    yield Case("GlobalAveragePool", [f(0, 3, 2, 2)], torch=lambda x: x.mean((2, 3), keepdim=True))
    yield Case("Max", [f(0, 2), f(2)], since=8, torch=torch.maximum)


def all_cases() -> list[Case]:
    """Every case."""
    nothing = [replace(case, awkward=True) for case in empty()]
    return [*unary(), *binary(), *reductions(), *layout(), *windows(), *older(), *nothing]


def opsets_of(case: Case) -> list[int]:
    """The opsets in which a case is run: its first, and where the operator changes."""
    return [
        opset
        for opset in range(case.since, case.until + 1)
        if opset == case.since or version(case.op_type, opset) == opset
    ]


def version(op_type: str, opset: int) -> int:
    """The opset that an operator of an opset is from; 0 where there is none."""
    try:
        schema = onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return 0
    return 0 if schema.deprecated else int(schema.since_version)


ELSEWHERE = {
    "Constant": "tests/popdist_onnx/graph/test_conform.py",
    **dict.fromkeys(("If", "Loop", "Scan"), "tests/popdist_onnx/gradients/test_control_flow.py"),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), "tests/popdist_onnx/gradients/test_recurrent.py"),
    "Dropout": "tests/popdist_onnx/transforms/test_randomness.py",
    **dict.fromkeys(
        ("Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        "tests/popdist_onnx/transforms/test_randomness.py",
    ),
}
"""Operators that other tests compare, because they are no single node of numbers."""

EXCLUDED = {
    **dict.fromkeys(
        (
            *("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"),
            *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"),
        ),
        "it works on quantized numbers: PopART has no such operator, ONNX Runtime's kernel runs",
    ),
    **dict.fromkeys(
        (
            *("ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty"),
            *("SequenceErase", "SequenceInsert", "SequenceLength", "SplitToSequence"),
        ),
        "it works on sequences: PopART has no such operator, ONNX Runtime's kernel runs",
    ),
    **dict.fromkeys(
        ("StringNormalizer", "TfIdfVectorizer"), "it works on text: PopART has no such operator"
    ),
    **dict.fromkeys(
        ("MaxRoiPool", "RoiAlign", "NonMaxSuppression", "MaxUnpool"),
        "PopART has no such operator; ONNX Runtime's kernel runs, without a gradient",
    ),
}
"""Operators without a case, and why."""

WITHOUT_CASE = {
    ("ConvTranspose", "output_shape"): "compared with ONNX's text in graph/test_conform.py",
    ("ConvTranspose", "kernel_shape"): "the weights say it",
    ("BatchNormalization", "spatial"): "with numpy and torch: graph/test_conform.py",
    ("BatchNormalization", "momentum"): "of training only: graph/test_conform.py",
    ("MaxPool", "storage_order"): "it orders the indices, which PopART does not have",
    ("EyeLike", "dtype"): "the type of the input is taken",
    ("ConstantOfShape", "value"): "a tensor: graph/test_conform.py takes the default",
    ("LpPool", "pads"): "torch and the evaluator have no padded form",
    ("LpPool", "strides"): "as of the other pools",
    ("Upsample", "mode"): "before opset 7 ONNX Runtime refuses the operator",
    ("Upsample", "height_scale"): "a form of before opset 7, which ONNX Runtime refuses",
    ("Upsample", "width_scale"): "a form of before opset 7, which ONNX Runtime refuses",
    ("Resize", "extrapolation_value"): "of tf_crop_and_resize only, which PopART does not have",
}
"""Attributes that no case gives, and why."""
