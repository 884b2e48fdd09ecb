"""Rules over generated shapes, axes and attributes."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from tests.popdist_onnx.gradients.harness import Case, check

few = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
lengths = st.integers(1, 4)
shapes = st.lists(lengths, min_size=1, max_size=4).map(tuple)


@st.composite
def arrays(draw, shape=shapes, low=-2.0, high=2.0):
    # Elements far enough from each other and from zero that no step moves a maximum or a sign.
    shape = draw(shape) if hasattr(shape, "example") else shape
    count = int(np.prod(shape, dtype=int))
    order = np.random.default_rng(draw(st.integers(0, 99))).permutation(count)
    spread = np.linspace(low, high, count + 1)[:-1] + (high - low) / (3 * count + 1)
    return spread[order].reshape(shape).astype(np.float32)


@st.composite
def broadcast_pairs(draw):
    """Two shapes that broadcast: axes of length 1 and axes that are missing."""
    shape = draw(shapes)
    kept = tuple(one if draw(st.booleans()) else 1 for one in shape)
    small = kept[draw(st.integers(0, len(kept))) :]
    pair = [draw(arrays(shape)), draw(arrays(small, 0.5, 2.5))]
    return pair if draw(st.booleans()) else pair[::-1]


BINARY = {"Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Max": torch.maximum}


@few
@given(broadcast_pairs(), st.sampled_from(sorted(BINARY)))
def test_broadcast(pair, op_type):
    check(Case(op_type, pair, BINARY[op_type]))


@few
@given(broadcast_pairs())
def test_division_and_power(pair):
    absolute = [np.asarray(np.abs(one) + 0.5, np.float32) for one in pair]
    check(Case("Div", absolute, torch.div))
    check(Case("Pow", absolute, torch.pow, tolerance=5e-4))


REDUCTIONS = {
    "ReduceSum": torch.sum,
    "ReduceMean": torch.mean,
    "ReduceMax": torch.amax,
    "ReduceMin": torch.amin,
    "ReduceLogSumExp": torch.logsumexp,
    "ReduceL2": lambda x, axes, keepdim: x.square().sum(axes, keepdim=keepdim).sqrt(),
    "ReduceL1": lambda x, axes, keepdim: x.abs().sum(axes, keepdim=keepdim),
    "ReduceSumSquare": lambda x, axes, keepdim: x.square().sum(axes, keepdim=keepdim),
}


@few
@given(arrays(), st.data(), st.sampled_from(sorted(REDUCTIONS)), st.booleans(), st.booleans())
def test_reduction(x, data, op_type, keep, old):
    rank = x.ndim
    axes = data.draw(st.lists(st.integers(0, rank - 1), min_size=1, unique=True))
    written = [axis - rank if data.draw(st.booleans()) else axis for axis in axes]

    def reference(x, *_):
        return REDUCTIONS[op_type](x, tuple(axes), keepdim=keep)

    attributes = {"keepdims": int(keep)}
    if old:
        settings_ = attributes | {"axes": axes}
        check(Case(op_type, [x], reference, settings_, opset=12))
    else:
        check(Case(op_type, [x, np.array(written)], reference, attributes))


@few
@given(st.lists(lengths, max_size=2), st.lists(lengths, max_size=2), lengths, lengths, lengths)
def test_product_of_stacks(left, right, rows, inner, columns):
    common = min(len(left), len(right))
    right = (
        [
            one if other in {1, one} else 1
            for one, other in zip(
                right[len(right) - common :], left[len(left) - common :], strict=True
            )
        ]
        if common
        else right
    )
    a = np.random.default_rng(1).standard_normal([*left, rows, inner]).astype(np.float32)
    b = np.random.default_rng(2).standard_normal([*right, inner, columns]).astype(np.float32)
    check(Case("MatMul", [a, b], torch.matmul))


@few
@given(st.booleans(), st.booleans(), lengths, lengths, lengths, st.sampled_from([0, 1, 2]))
def test_gemm(trans_a, trans_b, rows, inner, columns, bias_rank):
    rng = np.random.default_rng(3)
    a = rng.standard_normal([inner, rows] if trans_a else [rows, inner]).astype(np.float32)
    b = rng.standard_normal([columns, inner] if trans_b else [inner, columns]).astype(np.float32)
    c = rng.standard_normal([rows, columns][2 - bias_rank :]).astype(np.float32)

    def reference(a, b, c):
        return 0.5 * (a.T if trans_a else a) @ (b.T if trans_b else b) + 2 * c

    attributes = {"transA": int(trans_a), "transB": int(trans_b), "alpha": 0.5, "beta": 2.0}
    check(Case("Gemm", [a, b, c], reference, attributes))


@few
@given(arrays(), st.data(), st.sampled_from([9, 18]))
def test_softmax(x, data, opset):
    axis = data.draw(st.integers(0, x.ndim - 1))

    def reference(x):
        if opset >= 13:
            return x.softmax(axis)
        flat = x.reshape(int(np.prod(x.shape[:axis], dtype=int)), -1)
        return flat.softmax(1).reshape(x.shape)

    check(Case("Softmax", [x], reference, {"axis": axis}, opset=opset))


@few
@given(arrays(), st.data())
def test_slice(x, data):
    starts, ends, steps = [], [], []
    for length in x.shape:
        step = data.draw(st.sampled_from([1, 1, 2, -1]))
        starts.append(length - 1 if step < 0 else data.draw(st.integers(0, length - 1)))
        ends.append(-length - 1 if step < 0 else data.draw(st.integers(starts[-1] + 1, length)))
        steps.append(step)

    def reference(x, *_):
        for axis, (start, end, step) in enumerate(zip(starts, ends, steps, strict=True)):
            index = range(x.shape[axis])[slice(start, None if end < 0 else end, step)]
            x = x.index_select(axis, torch.tensor(list(index)))
        return x

    axes = list(range(x.ndim))
    check(Case("Slice", [x, *(np.array(one) for one in (starts, ends, axes, steps))], reference))


@few
@given(arrays(), st.data())
def test_gather(x, data):
    axis = data.draw(st.integers(0, x.ndim - 1))
    length = x.shape[axis]
    index = data.draw(st.lists(st.integers(-length, length - 1), min_size=1, max_size=5))

    def reference(x, index):
        return x.index_select(axis, index % length)

    check(Case("Gather", [x, np.array(index)], reference, {"axis": axis}))


@few
@given(arrays(), st.data())
def test_transpose_concat_split(x, data):
    order = data.draw(st.permutations(range(x.ndim)))
    check(Case("Transpose", [x], lambda x: x.permute(*order), {"perm": order}))
    axis = data.draw(st.integers(0, x.ndim - 1))
    check(Case("Concat", [x, 2 * x, x], lambda *all_: torch.cat(all_, axis), {"axis": axis}))
    sizes = data.draw(st.lists(lengths, min_size=1, max_size=3))
    whole = np.repeat(
        x[tuple(slice(0, 1) if one == axis else slice(None) for one in range(x.ndim))],
        sum(sizes),
        axis,
    )
    case = Case(
        "Split", [whole, np.array(sizes)], lambda x, _: x.split(sizes, axis), {"axis": axis}
    )
    case.outputs = len(sizes)
    check(case)


@st.composite
def convolutions(draw):
    rank = draw(st.integers(1, 2))
    groups = draw(st.sampled_from([1, 1, 2]))
    inside, outside = groups * draw(st.integers(1, 9)), groups * draw(st.integers(1, 3))
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    strides = [draw(st.integers(1, 3)) for _ in range(rank)]
    dilations = [draw(st.integers(1, 2)) for _ in range(rank)]
    before = [draw(st.integers(0, 1)) for _ in range(rank)]
    after = [draw(st.integers(0, 1)) for _ in range(rank)]
    rng = np.random.default_rng(4)
    length = [draw(st.integers(6, 8)) for _ in range(rank)]
    x = rng.standard_normal([2, inside, *length]).astype(np.float32)
    w = rng.standard_normal([outside, inside // groups, *kernel]).astype(np.float32)
    bias = rng.standard_normal(outside).astype(np.float32)
    convolve = functional.conv1d if rank == 1 else functional.conv2d

    def reference(x, w, b):
        around = [pad for axis in reversed(range(rank)) for pad in (before[axis], after[axis])]
        return convolve(functional.pad(x, around), w, b, strides, 0, dilations, groups)

    attributes = {
        "group": groups,
        "strides": strides,
        "dilations": dilations,
        "pads": before + after,
    }
    return Case("Conv", [x, w, bias], reference, attributes)


@settings(few, max_examples=30)
@given(convolutions())
def test_convolution(case):
    check(case)


@st.composite
def pools(draw):
    kernel = [draw(st.integers(1, 3)) for _ in range(2)]
    strides = [draw(st.integers(1, 3)) for _ in range(2)]
    pads = [draw(st.integers(0, size // 2)) for size in kernel]
    # A last window that begins behind the end is one that frameworks count differently.
    overlapping = all(step <= size for step, size in zip(strides, kernel, strict=True))
    ceil = overlapping and not any(pads) and draw(st.booleans())
    attributes = {
        "kernel_shape": kernel,
        "strides": strides,
        "pads": pads * 2,
        "ceil_mode": int(ceil),
    }
    x = draw(arrays((2, 3, draw(st.integers(4, 8)), draw(st.integers(4, 8)))))
    if draw(st.booleans()):
        return Case(
            "MaxPool",
            [x],
            lambda x: functional.max_pool2d(x, kernel, strides, pads, ceil_mode=ceil),
            attributes,
        )
    attributes["count_include_pad"] = int(counted := draw(st.booleans()))
    return Case(
        "AveragePool",
        [x],
        lambda x: functional.avg_pool2d(x, kernel, strides, pads, ceil, counted),
        attributes,
        opset=19,
    )


@settings(few, max_examples=30)
@given(pools())
def test_pool(case):
    check(case)


@few
@given(lengths, lengths, st.lists(st.integers(2, 4), max_size=2), st.booleans())
def test_normalizations(batch, channels, space, trained):
    rng = np.random.default_rng(5)
    x = rng.standard_normal([batch + 2, channels, *space]).astype(np.float32)
    scale, bias, mean = (rng.standard_normal(channels).astype(np.float32) for _ in range(3))
    variance = np.abs(mean) + 1

    def reference(x, scale, bias, mean, variance):
        running = (None, None) if trained else (mean.detach(), variance.detach())
        return functional.batch_norm(x, *running, scale, bias, training=trained)

    case = Case("BatchNormalization", [x, scale, bias, mean, variance], reference, wanted=[0, 1, 2])
    case.tolerance = 1e-3
    if trained:
        case.attributes, case.outputs, case.read = {"training_mode": 1}, 3, [0]
    check(case)


@few
@given(arrays(), st.data())
def test_layer_normalization(x, data):
    axis = data.draw(st.integers(0, x.ndim - 1))
    scale = data.draw(arrays(x.shape[axis:]))
    case = Case(
        "LayerNormalization",
        [x, scale, 2 * scale],
        lambda x, s, b: functional.layer_norm(x, x.shape[axis:], s, b),
        {"axis": axis},
        tolerance=2e-3,
    )
    check(case)


def test_the_statistics_of_layer_normalization_have_gradients():
    rng = np.random.default_rng(0)
    case = Case(
        "LayerNormalization",
        [rng.normal(size=shape).astype(np.float32) for shape in ((4, 3, 5), (3, 5))],
        lambda x, s: (
            functional.layer_norm(x, (3, 5), s),
            x.mean((1, 2), keepdim=True),
            1 / torch.sqrt(x.var((1, 2), unbiased=False, keepdim=True) + 1e-5),
        ),
        {"axis": 1},
        outputs=3,
    )
    check(case)
