"""The operators of ai.graphcore as data: each beside torch, with the points that formulas miss."""
# ruff: noqa: C901, E741, PLR0912 - a table that is written as loops

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional

from tests.popdist_onnx.conformance.case import ANYWHERE, OUT, Case, f, ints, pairs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_case = partial(Case, domain="ai.graphcore", since=10, until=10)


def graphcore_cases() -> list[Case]:
    """Every case."""
    return [*_elements(), *_moved(), *_losses(), *_layers()]


def _elements() -> Iterator[Case]:
    for y, x in (
        (f(2, 3), f(3)),
        (np.array([[1], [3], [-2], [0]], np.float32), np.array([0, 1, -1, 2], np.float32)),
        (f(0, 2), f(1)),
    ):
        yield _case("Atan2", [y, x], torch=torch.atan2, awkward=0 in x or not y.size)
    for dtype in (np.int32, np.uint32):
        a, b = ints(6, 5, 0, 1, dtype=dtype), ints(3, dtype=dtype)
        one, other = a.astype(np.int64), b.astype(np.int64)
        for name, function in (
            ("BitwiseAnd", np.bitwise_and),
            ("BitwiseOr", np.bitwise_or),
            ("BitwiseXor", np.bitwise_xor),
        ):
            made = function(one, other).astype(dtype)
            yield _case(name, [a, b], torch=_answers(made), slope=False)
        yield _case("BitwiseXnor", [a, b], torch=_answers(~(a ^ b)), slope=False)
        yield _case("BitwiseNot", [a], torch=_answers(~a), slope=False)
    for shape in ([-1], [13, 1]):
        points = ANYWHERE[:-1] if shape == [-1] else ANYWHERE[:-1].repeat(1)[:, None]
        yield _case(
            "Expm1",
            [points.reshape(shape[:1] if shape == [-1] else [-1, 1])],
            torch=torch.expm1,
            awkward=True,
        )
    beyond = np.array([-1 + 1e-3, -0.5, -1e-6, 0, 1e-6, 3, 1e4], np.float32)
    yield _case("Log1p", [beyond], torch=torch.log1p, awkward=True)
    yield _case(
        "Gelu", [ANYWHERE], torch=partial(functional.gelu, approximate="tanh"), awkward=True
    )
    yield _case("Gelu", [f(2, 3)], torch=partial(functional.gelu, approximate="tanh"))
    for name, function in (("Fmod", torch.fmod), ("Remainder", torch.remainder)):
        yield _case(name, [f(2, 3) * 5, f(3) + 3], torch=function)
        whole = np.array([7, -7, 6, 0], np.float32), np.array([3, 3, -3, 2], np.float32)
        yield _case(name, list(whole), torch=function, slope=False, awkward=True)
        numbers = ints(7, -7, 7, -7), ints(3, 3, -3, -3)
        yield _case(name, list(numbers), torch=function, slope=False)
    halves = np.array([-2.5, -1.5, -0.5, 0, 0.5, 1.5, 2.5, 0.4], np.float32)
    for name in ("Round", "NearbyInt"):
        yield _case(name, [halves], torch=torch.round, awkward=True)
    for name, function in (("GeluErf", functional.gelu), ("Swish", functional.silu)):
        yield _case(name, [f(2, 3)], torch=function)
        yield _case(name, [ANYWHERE], torch=function, awkward=True)
    for numbers in (f(5) * 5, ints(5, -5, 10, 1, 2)):
        yield _case(
            "IncrementMod",
            [numbers],
            {"increment": 3.0, "modulus": 4.0},
            torch=lambda x: torch.fmod(x + 3, 4),
            slope=numbers.dtype.kind == "f",
        )
    yield _case(
        "NormalizeImage",
        [f(2, 2, 3), f(3), f(3)],
        {"scale": 0.5},
        torch=lambda x, o, s: functional.pad((x * 0.5 - o) * s, (0, 1)),
    )
    for scale in (2.5, 0.0, -1.0):
        yield _case(
            "Scale", [f(2, 3)], {"scale": scale}, torch=lambda x, s=scale: x * float(np.float32(s))
        )
    for one, other in (([2, 3], [2, 3]), ([0, 3], [0, 3]), ([], [])):
        yield _case(
            "ScaledAdd",
            [f(*one), f(*other)],
            {"scale0": 0.5, "scale1": -2.0},
            torch=lambda a, b: 0.5 * a - 2 * b,
            awkward=not one or 0 in one,
        )
    yield _case(
        "ScaledAdd",
        [f(2, 3), f(2, 3), f(), f()],
        torch=lambda a, b, s, t: s * a + t * b,
    )
    for name in ("Nop", "PrintTensor", "TensorRemap"):
        setting = {"remap_type": 0} if name == "TensorRemap" else {}
        yield _case(name, [f(2, 3)], setting, torch=lambda x: x * 1)
        yield _case(name, [f()], torch=lambda x: x * 1, awkward=True)
    yield _case("ReplicatedAllReduce", [f(2, 3)], torch=lambda x: x * 1)
    yield _case("Detach", [f(2, 3)], torch=lambda x: x.detach())
    yield _case(
        "Init",
        [],
        {"shape": [2, 0, 3], "data_type": 1, "init_type": 1},
        torch=lambda: torch.zeros(2, 0, 3),
        slope=False,
    )
    yield _case(
        "Init",
        [],
        {"shape": [2], "data_type": 6, "init_type": 1, "batch_axis": -1},
        torch=lambda: torch.zeros(2, dtype=torch.int32),
        slope=False,
    )


def _answers(made: np.ndarray) -> Any:
    """A reference that numpy has computed, for types that torch does not compute with."""
    tensor = torch.tensor(made.astype(np.int64) if made.dtype == np.uint32 else made)
    return lambda *_: tensor


def _moved() -> Iterator[Case]:
    for mode in (OUT, "DCR", "CRD"):
        setting = {"blocksize": 2} | ({} if mode is OUT else {"mode": mode})
        yield _case(
            "DepthToSpace",
            [f(2, 8, 2, 3)],
            setting,
            torch=lambda x, m=mode: functional.pixel_shuffle(
                x if m == "CRD" else _columns_first(x), 2
            ),
        )
    for shape, target in (([2, 3, 4], [4, -1]), ([2, 3], []), ([1, 1], []), ([2, 0], [0, 0])):
        if np.prod(shape) == np.prod(target) or -1 in target:
            yield _case(
                "Reshape",
                [f(*shape)],
                {"shape": target},
                torch=lambda x, t=target: x.reshape(t if 0 not in t else x.shape),
                awkward=not target,
            )
    for dims in ([0], [1, 0], [2]):
        yield _case(
            "Reverse",
            [f(2, 3, 1)],
            {"dimensions": dims},
            torch=lambda x, d=dims: x.flip(d),
            awkward=dims == [2],
        )
    yield _case(
        "Reverse", [f(2, 0)], {"dimensions": [0, 1]}, torch=lambda x: x.flip([0, 1]), awkward=True
    )
    for strides in ([1, 1], [2, 1], [3, 2], [5, 9]):
        yield _case(
            "Subsample",
            [f(5, 4)],
            {"strides": strides},
            torch=lambda x, s=strides: x[:: s[0], :: s[1]],
            awkward=strides == [5, 9],
        )
    yield _case(
        "Slice",
        [f(4, 5)],
        {"starts": [-3, 1], "ends": [4, -1], "axes": [0, 1]},
        torch=lambda x: x[-3:4, 1:-1],
    )
    for setting in pairs(axis=[OUT, 0, 1], descending=[OUT, 0, 1], stable=[OUT, 1]):
        yield _case(
            "Sort",
            [f(4, 5)],
            setting,
            outputs=2,
            torch=lambda x, s=setting: _sorted(
                x, dim=s.get("axis", -1), descending=bool(s.get("descending"))
            ),
        )
    meeting = np.array([[2, 2, 1], [2, 3, 3]], np.float32)
    yield _case("Sort", [meeting], outputs=2, torch=_sorted, slope=False, awkward=True)
    for places, right in itertools.product(([1, 3, 5, 7], [1, 2, 3, 6, 4, 5], [0], []), (0, 1)):
        boundaries = np.array(places, np.float32)
        points = np.array([[3, 6, 9, 0], [1, 5, 2.5, 7]], np.float32)
        yield _case(
            "Bucketize",
            [points, boundaries],
            {"right": right},
            torch=lambda x, b, r=right: torch.bucketize(x, b, out_int32=True, right=bool(r)),
            slope=False,
            awkward=len(places) != 4,
        )
    for axis, index in ((1, ints(0, 2, -1, 1)), (2, ints(0, 1, 1, 0)), (-1, ints(2, -3, 0, 0))):
        for shape in ([2, 2], [2, 1, 2]):
            yield _case(
                "GroupedGather",
                [f(2, 3, 3), index.reshape(shape).astype(np.int32)],
                {"axis": axis, "group_size": 2},
                torch=lambda x, i, a=axis: torch.stack(
                    [_taken(part, at, (a % 3) - 1) for part, at in zip(x, i, strict=True)]
                ),
            )
    yield _case(
        "GroupedGather", [f(3, 2), ints(2, 0)], torch=lambda x, i: _taken(x, i, 0), awkward=True
    )
    yield _case(
        "EmbeddingGather",
        [f(5, 3), np.array([4, 0, 4], np.uint32)],
        torch=lambda x, i: torch.nn.functional.embedding(i.long(), x),
    )
    for setting in pairs(axes=[OUT, [0], [1], [-1], [0, 2], []], keepdims=[OUT, 0, 1]):
        yield _case(
            "ReduceMedian",
            [f(3, 4, 2)],
            setting,
            outputs=2,
            torch=lambda x, s=setting: _median(x, s.get("axes", [0, 1, 2]), s.get("keepdims", 1)),
            awkward=setting.get("axes") in ([], [-1]),
        )
    ties = np.array([[1, 3, 3, 3], [2, 2, 2, 2]], np.float32)
    yield _case(
        "ReduceMedian",
        [ties],
        {"axes": [1]},
        outputs=2,
        read=[0],
        slope=False,
        awkward=True,
        torch=lambda x: _median(x, [1], 1),
    )
    offset = ints(1, 2, dtype=np.uint32)
    for axes, sizes, at in (
        ([0, 1], [2, 2], offset),
        ([1], [3], offset[1:]),
        ([-1], [3], offset[1:]),
        ([0], [3], offset[1:]),
    ):
        setting = {"axes": axes, "sizes": sizes}
        shape = [3, 4]
        for axis, size in zip(axes, sizes, strict=True):
            shape[axis] = size
        wrapped = axes in ([1], [-1], [0])
        for name, operands in (
            ("DynamicSlice", [f(3, 4), at]),
            ("DynamicUpdate", [f(3, 4), at, f(*shape)]),
            ("DynamicAdd", [f(3, 4), at, f(*shape)]),
            ("DynamicZero", [f(3, 4), at]),
        ):
            more = (
                {"noOverlap": 1}
                if name in ("DynamicSlice", "DynamicUpdate") and not wrapped
                else {}
            )
            yield _case(
                name,
                operands,
                setting | more,
                torch=partial(_dynamic, name, axes, sizes),
                awkward=wrapped,
            )
    for reduction in (OUT, "Sum", "max", "Min", "mul"):
        for axis, index in (
            (0, ints(0, 2, 2, 1)),
            (-1, ints(3, 0, 3)),
            (1, np.array([[0, 1, 1], [4, 2, 0], [0, 0, 0], [1, 1, 3]])),
        ):
            setting = {"axis_size": 5, "axis": axis} | (
                {} if reduction is OUT else {"reduction": reduction}
            )
            how = "Sum" if reduction is OUT else reduction
            yield _case(
                "ScatterReduce",
                [f(4, 3), index.astype(np.int32)],
                setting,
                torch=partial(_scattered, axis, how),
                awkward=True,
            )
            start = f(5, 3) if axis == 0 else f(4, 5)
            yield _case(
                "ScatterReduce",
                [f(4, 3), index.astype(np.int32), start],
                setting,
                torch=partial(_scattered, axis, how),
                awkward=True,
            )
    few = np.array([[[0, 1], [4, 2]], [[1, 1], [3, 0]]])
    for group, other, reduction in itertools.product((1, 2), (0, 1), ("sum", "none", "mul")):
        setting = {"axis_size": 5, "axis": 1, "reduction": reduction, "group_size": group}
        repeated = np.array([[3, 0, 1], [0, 4, 2]]) if group > 1 else np.array([3, 0, 1])
        index = repeated if other else few
        yield _case(
            "ScatterReduce",
            [f(2, 3, 4), index.astype(np.int32)],
            setting | {"enable_index_broadcast": other},
            torch=partial(_scattered_part, reduction, other),
            awkward=reduction == "none",
        )
    zero = np.array([2, 0, 3, 0, 0, 5], np.float32)
    yield _case(
        "ScatterReduce",
        [zero, ints(0, 0, 0, 1, 1, 2), np.array([2, 3, 0], np.float32)],
        {"axis_size": 3, "reduction": "mul"},
        torch=partial(_scattered, 0, "mul"),
        awkward=True,
    )
    lengths = [ints(*one, dtype=np.uint32) for one in ([2, 1], [0, 3], [1, 4])]
    meeting = [ints(*one, dtype=np.uint32) for one in ([2, 3, 0], [0, 2, 1], [1, 2, 4])]
    for runs in (lengths, meeting):
        for unused in (OUT, 0, 1):
            setting = {} if unused is OUT else {"zeroUnused": unused}
            yield _case(
                "SequenceSlice",
                [f(5, 2), f(6, 2), *runs],
                setting,
                torch=partial(_runs, unused == 1),
                awkward=runs is meeting,
            )


def _sorted(x: torch.Tensor, **settings: Any) -> list[torch.Tensor]:
    found = torch.sort(x, stable=True, **settings)
    return [found.values, found.indices.int()]


def _taken(x: torch.Tensor, index: torch.Tensor, axis: int) -> torch.Tensor:
    """As numpy's take."""
    index = index.long() % x.shape[axis]
    rows = x.movedim(axis, 0)[index]
    between = list(range(index.ndim))
    return rows.movedim(between, [axis + one for one in between])


def _scattered_part(how: str, repeated: int, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """With indices of their own shape, the values that have one; repeated, all of them."""
    index = index.long()
    if repeated:
        index = index.reshape(-1, index.shape[-1], 1).expand_as(x).contiguous()
    shape = [index.shape[0], 5, *index.shape[2:]]
    part = x[: index.shape[0], : index.shape[1], : index.shape[2]]
    if how == "none":
        return torch.zeros(shape, dtype=x.dtype).scatter(1, index, part)
    base = torch.full(shape, float(how == "mul"), dtype=x.dtype)
    return base.scatter_reduce(1, index, part, {"sum": "sum", "mul": "prod"}[how])


def _columns_first(x: torch.Tensor) -> torch.Tensor:
    n, c, h, w = x.shape
    return x.reshape(n, 2, 2, c // 4, h, w).permute(0, 3, 1, 2, 4, 5).reshape(n, c, h, w)


def _median(x: torch.Tensor, axes: Sequence[int], keep: int) -> list[torch.Tensor]:
    axes = sorted(axis % x.ndim for axis in axes)
    if not axes:
        return [x * 1, torch.zeros(x.shape, dtype=torch.int32)]
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    rows = x.permute(*kept, *axes).flatten(len(kept))
    found = rows.median(-1)
    shape = (
        [1 if axis in axes else x.shape[axis] for axis in range(x.ndim)]
        if keep
        else [x.shape[axis] for axis in kept]
    )
    return [found.values.reshape(shape), found.indices.reshape(shape).int()]


def _dynamic(
    name: str,
    axes: Sequence[int],
    sizes: Sequence[int],
    x: torch.Tensor,
    offset: torch.Tensor,
    piece: Any = None,
) -> torch.Tensor:
    """Slices that wrap around at the end."""
    index: list[Any] = [torch.arange(length) for length in x.shape]
    for axis, size, start in zip(axes, sizes, offset.long(), strict=True):
        index[axis] = (start + torch.arange(size)) % x.shape[axis]
    places = torch.meshgrid(*index, indexing="ij")
    if name == "DynamicSlice":
        return x[places]
    if name == "DynamicAdd":
        return x.index_put(places, piece, accumulate=True)
    return x.index_put(places, torch.zeros((), dtype=x.dtype) if piece is None else piece)


def _scattered(
    axis: int, how: str, x: torch.Tensor, index: torch.Tensor, start: Any = None
) -> torch.Tensor:
    names = {"sum": "sum", "max": "amax", "min": "amin", "mul": "prod"}
    index = index.long()
    if index.ndim == 1:
        along = [1] * x.ndim
        along[axis] = -1
        index = index.reshape(along).expand(x.shape)
    shape = list(x.shape)
    shape[axis] = 5
    base = torch.full(shape, float(how == "mul"), dtype=x.dtype) if start is None else start
    kept = start is not None
    return base.scatter_reduce(axis, index, x, names[how.lower()], include_self=kept)


def _runs(
    zero: bool, source: torch.Tensor, destination: torch.Tensor, *runs: torch.Tensor
) -> torch.Tensor:
    made = torch.zeros_like(destination) if zero else destination.clone()
    for length, begin, end in zip(*(one.tolist() for one in runs), strict=True):
        made[end : end + length] = source[begin : begin + length]
    return made


def _reduced(x: torch.Tensor, how: str) -> torch.Tensor:
    return {"Sum": x.sum, "Mean": x.mean, "None": lambda: x}[how]()


def _losses() -> Iterator[Case]:
    awkward = np.array([[0, -2, 3], [0, 0, 1e-6]], np.float32)
    for reduction in ("Mean", "Sum", "None"):
        setting = {"reduction": reduction}
        yield _case("IdentityLoss", [f(2, 3)], setting, torch=partial(_reduced, how=reduction))
        yield _case(
            "IdentityLoss", [f(1)], setting, torch=partial(_reduced, how=reduction), awkward=True
        )
        yield _case(
            "L1",
            [awkward],
            setting | {"lambda": 0.25},
            torch=lambda x, h=reduction: _reduced(0.25 * x.abs(), h),
            awkward=True,
        )
        for ignore in (OUT, 3, -100):
            for logarithmic in (OUT, 0, 1):
                chosen = setting | ({} if ignore is OUT else {"ignoreIndex": ignore})
                chosen |= {} if logarithmic is OUT else {"inputIsLogProbability": logarithmic}
                scores = f(2, 3, 4)
                p = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
                labels = np.array([[0, 3, 1], [2, 3, 3]], np.int32)
                yield _case(
                    "Nll",
                    [(np.log(p) if logarithmic == 1 else p).astype(np.float32), labels],
                    chosen,
                    torch=partial(_nll, reduction, ignore, logarithmic=logarithmic == 1),
                )
        everything = np.full([2], 3, np.int32)
        yield _case(
            "Nll",
            [np.full((2, 4), 0.25, np.float32), everything],
            setting | {"ignoreIndex": 3},
            torch=partial(_nll, reduction, 3, logarithmic=False),
            awkward=True,
        )
        for blank, infinity in ((0, OUT), (2, 0), (0, 1)):
            chosen = (
                setting | {"blank": blank} | ({} if infinity is OUT else {"zeroInfinity": infinity})
            )
            logits = torch.tensor(f(5, 2, 4)).log_softmax(2).numpy()
            targets = np.array([[1, 1], [3, 1]], np.int32)
            long, short = ints(5, 4, dtype=np.uint32), ints(2, 1, dtype=np.uint32)
            if infinity == 1:
                targets, long, short = (
                    np.array([[1, 1, 1, 1], [3, 1, 0, 0]], np.int32),
                    ints(3, 5, dtype=np.uint32),
                    ints(4, 2, dtype=np.uint32),
                )
            yield _case(
                "Ctc",
                [logits, targets, long, short],
                chosen,
                torch=lambda x, t, i, l, b=blank, h=reduction, z=infinity == 1: functional.ctc_loss(
                    x, t.long(), i.long(), l.long(), b, h.lower(), z
                ),
                by_differences=True,
                awkward=infinity == 1,
                tolerance=1e-4,
            )


def _nll(
    how: str, ignore: Any, p: torch.Tensor, labels: torch.Tensor, *, logarithmic: bool
) -> torch.Tensor:
    rows = -(p if logarithmic else p.clamp(min=1e-7).log())
    picked = rows.gather(-1, labels.long().unsqueeze(-1)).squeeze(-1)
    if ignore is OUT:
        return _reduced(picked, how)
    kept = labels != ignore
    picked = torch.where(kept, picked, 0.0 * picked)
    return picked.sum() / max(int(kept.sum()), 1) if how == "Mean" else _reduced(picked, how)


def _layers() -> Iterator[Case]:
    for shape, groups, epsilon in (
        ([2, 4, 3], 2, OUT),
        ([3, 4], 1, 1e-3),
        ([2, 4, 1, 1], 4, 0.1),
        ([1, 6], 3, OUT),
    ):
        setting = {"num_groups": groups} | ({} if epsilon is OUT else {"epsilon": epsilon})
        e = 1e-5 if epsilon is OUT else epsilon
        yield _case(
            "GroupNormalization",
            [f(*shape), f(shape[1]), f(shape[1])],
            setting,
            outputs=3,
            torch=partial(_group_norm, groups, float(np.float32(e))),
            tolerance=1e-3,
            awkward=shape == [2, 4, 1, 1],
        )
    for state, bias, whole in ((True, True, OUT), (False, True, 0), (False, False, 1)):
        operands = [f(3, 2, 2), f(4, 5, 3)]
        operands += [f(4, 3)] if bias else []
        operands += [f(2, 2, 3)] if state else []
        setting = {} if whole is OUT else {"outputFullSequence": whole}
        yield _case(
            "LSTM", operands, setting, outputs=2, torch=partial(_lstm, whole != 0), tolerance=2e-4
        )
    yield _case(
        "MultiConv",
        [f(1, 2, 5, 5), f(4, 2, 3, 3), f(1, 3, 7), f(2, 3, 2), f(2)],
        {
            "inputCounts": [2, 3],
            "strides": [2, 1, 3],
            "pads": [1, 0, 0, 1, 2, 1],
            "dilations": [1, 2, 2],
        },
        outputs=2,
        torch=lambda x, w, y, v, b: [
            functional.conv2d(functional.pad(x, (0, 1, 1, 0)), w, None, (2, 1), 0, (1, 2)),
            functional.conv1d(functional.pad(y, (2, 1)), v, b, 3, 0, 2),
        ],
        tolerance=2e-4,
    )


def _group_norm(
    groups: int, epsilon: float, x: torch.Tensor, s: torch.Tensor, b: torch.Tensor
) -> list[torch.Tensor]:
    by_group = x.reshape(x.shape[0], groups, -1)
    mean = by_group.mean(-1)
    inverse = 1 / (by_group.var(-1, correction=0) + epsilon).sqrt()
    return [functional.group_norm(x, groups, s, b, epsilon), mean.reshape(-1), inverse.reshape(-1)]


def _lstm(
    whole: bool, x: torch.Tensor, w: torch.Tensor, b: Any = None, state: Any = None
) -> list[torch.Tensor]:
    """PopART's gates: forget, input, candidate, output."""
    hidden = w.shape[2]
    h = torch.zeros(x.shape[1], hidden, dtype=x.dtype) if state is None else state[0]
    c = torch.zeros_like(h) if state is None else state[1]
    made = []
    for step in x:
        parts = [
            torch.cat([step, h], 1) @ one + (0 if b is None else b[k]) for k, one in enumerate(w)
        ]
        forget, enter, output = (parts[k].sigmoid() for k in (0, 1, 3))
        c = forget * c + enter * parts[2].tanh()
        h = output * c.tanh()
        made.append(h)
    return [torch.stack(made) if whole else h, c]


ELSEWHERE = {
    "Abort": "tests/popdist_onnx/session/test_abort.py",
    "Call": "tests/popdist_onnx/gradients/test_control_flow.py",
    "CtcBeamSearchDecoder": "tests/popdist_onnx/lowering/test_ctc.py",
    "PackedDataBlock": "tests/popdist_onnx/lowering/test_apply.py",
    "ShapedDropout": "tests/popdist_onnx/lowering/test_layers.py",
}
"""Operators that other tests compare: sub-graphs, a search, random numbers, and no result."""

WITHOUT_CASE = {
    **dict.fromkeys(
        [
            ("MultiConv", name)
            for name in (
                *("availableMemoryProportions", "partialsTypes", "planType"),
                *("perConvReservedTiles", "cycleBackOff", "enableConvDithering"),
            )
        ],
        "it steers an IPU's plan, and changes no number",
    ),
    ("MultiConv", "inDilations"): "refused with a hint where it is not 1",
    ("MultiConv", "outPads"): "refused with a hint where it is not 0",
    ("PrintTensor", "print_gradient"): "nothing is printed",
    ("PrintTensor", "title"): "nothing is printed",
    ("Ctc", "outDataType"): "a cast of the result: lowering/test_ctc.py",
    ("ReplicatedAllReduce", "commGroup"): "of several replicas: distributed/test_onnx_graphcore.py",
}
"""Arguments that no case gives, and why."""
