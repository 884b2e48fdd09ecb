"""Reductions, and operators that move, take and put elements."""
# ruff: noqa: ARG005, C901, E731, PLR0912, PLR0915, TC003 - a table that is written as loops

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch.nn import functional

from tests.popdist_onnx.conformance.case import (
    OUT,
    Case,
    f,
    ints,
    pairs,
)

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


def _coerced(x: torch.Tensor, axis: int, op_type: str) -> torch.Tensor:
    """Until opset 12 everything from the axis on is one dimension."""
    axis %= x.ndim
    flat = x.reshape(int(np.prod(x.shape[:axis], dtype=int)), -1)
    if op_type == "Hardmax":
        made = functional.one_hot(flat.argmax(1), flat.shape[1]).to(x.dtype)
    else:
        made = flat.softmax(1) if op_type == "Softmax" else flat.log_softmax(1)
    return made.reshape(x.shape)
