"""Pools over windows and over everything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from popdist_onnx.gradients.indexing import narrow, wide, wide_type
from popdist_onnx.gradients.reductions import spread
from popdist_onnx.gradients.registry import At, gradient
from popdist_onnx.gradients.windows import Windows, spatial
from popdist_onnx.graph import shape_ops

if TYPE_CHECKING:
    from popdist_onnx.graph.tensor import Tensor


@gradient("GlobalAveragePool")
def _global_average(at: At) -> Tensor:
    return spread(at, at.g / shape_ops.count(at.x, range(2, at.x.rank)))


@gradient("GlobalMaxPool")
def _global_max(at: At) -> Tensor:
    """Equal maxima share the gradient."""
    hit = at.tape.Cast(at.tape.Equal(at.x, at.y), to=at.x.dtype.value)
    count = at.tape.ReduceSum(hit, list(range(2, at.x.rank)), keepdims=1)
    return hit * (at.g / count)


@gradient("GlobalLpPool")
def _global_lp(at: At) -> Tensor:
    return _lp_slope(at, at.g, at.y)


def _lp_slope(at: At, g: Tensor, y: Tensor) -> Tensor:
    """D (sum |x|^p)^(1/p) = sign(x) (|x| / y)^(p - 1), and zero at the origin."""
    tape, p = at.tape, at.get("p", 2)
    if p == 1:
        return tape.Sign(at.x) * g
    zero, one = tape.scalar(0, at.x.dtype), tape.scalar(1, at.x.dtype)
    part = tape.Abs(at.x) / tape.Where(tape.Equal(y, zero), one, y)
    power = part if p == 2 else part ** float(p - 1)  # noqa: PLR2004 - the usual norm
    return tape.Sign(at.x) * power * g


@gradient("MaxPool")
def _max_pool(at: At) -> Tensor:
    """The gradient goes to where the maximum came from, which the second output says.

    Windows that do not overlap need no sum.
    """
    if at.get("storage_order", 0):
        raise at.refused("storage_order 1 counts positions by column", "use storage_order 0")
    at.with_outputs(2)
    tape, x, g = at.tape, at.x, at.g
    windows = Windows.of(at, x, at.y)
    overlap = any(
        (size - 1) * dilation + 1 > stride
        for size, dilation, stride in zip(
            windows.kernel, windows.dilations, windows.strides, strict=True
        )
    )
    filled = tape.ScatterElements(
        tape.Reshape(shape_ops.zeros(x, wide_type(x)), [-1]),
        tape.Reshape(at.output(1), [-1]),
        tape.Reshape(wide(g), [-1]),
        axis=0,
        reduction="add" if overlap else None,
    )
    return shape_ops.shaped(narrow(filled, x), x)


@gradient("AveragePool")
def _average_pool(at: At) -> Tensor:
    """Every window spreads its gradient evenly: a transposed convolution with ones."""
    x = at.x
    windows = Windows.of(at, x, at.y)
    lengths, counts = spatial(x), spatial(at.y)
    if lengths is None or counts is None:
        raise at.refused("lengths are unknown", "export the model with fixed shapes")
    share = at.g / _elements(at, windows, lengths, counts)
    return _spread_windows(at, share, windows, lengths, counts)


def _elements(
    at: At, windows: Windows, lengths: list[int], counts: list[int]
) -> float | np.ndarray[Any, np.dtype[Any]]:
    """How many elements each window averages."""
    padding = bool(at.get("count_include_pad", 0))
    per_axis = []
    for axis, length in enumerate(lengths):
        first = -windows.before[axis] if padding else 0
        last = length + (windows.after[axis] if padding else 0)
        starts = np.arange(counts[axis]) * windows.strides[axis] - windows.before[axis]
        places = starts[:, None] + np.arange(windows.kernel[axis]) * windows.dilations[axis]
        per_axis.append(((places >= first) & (places < last)).sum(1))
    table = per_axis[0]
    for more in per_axis[1:]:
        table = table[..., None] * more
    if (table == table.flat[0]).all():
        return float(table.flat[0])
    return np.asarray(table, at.x.dtype.numpy())


def _spread_windows(
    at: At, share: Tensor, windows: Windows, lengths: list[int], counts: list[int]
) -> Tensor:
    """Adds each window's value to all of its elements."""
    tape, rank = at.tape, windows.rank
    rest = windows.rest(lengths, counts)
    if windows.kernel == windows.strides and not windows.padded and not any(rest):
        return _repeated(at, share, windows, counts)
    # Channels become the batch, so that one kernel of ones serves all of them.
    flat = tape.Reshape(share, [-1, 1, *counts])
    ones = tape.constant(np.ones((1, 1, *windows.kernel), at.x.dtype.numpy()))
    # A window that hangs over the end (ceil_mode) takes more padding instead of less output.
    after = [windows.after[axis] + max(0, -rest[axis]) for axis in range(rank)]
    spread_out = tape.ConvTranspose(
        flat,
        ones,
        kernel_shape=windows.kernel,
        strides=windows.strides,
        dilations=windows.dilations,
        pads=[*windows.before, *after],
        output_padding=[max(0, one) for one in rest],
    )
    return shape_ops.shaped(spread_out, at.x)


def _repeated(at: At, share: Tensor, windows: Windows, counts: list[int]) -> Tensor:
    """Windows side by side: every value is repeated."""
    tape = at.tape
    if all(count == 1 for count in counts):
        return tape.Expand(share, shape_ops.lengths(at.x))
    pairs = [n for count in counts for n in (count, 1)]
    split = tape.Reshape(share, [0, 0, *pairs])
    channels = at.tape.Shape(at.x, start=0, end=2)
    grid = [n for count, size in zip(counts, windows.kernel, strict=True) for n in (count, size)]
    shape = (
        tape.ints(*at.x.shape[:2], *grid)
        if at.x.static
        else tape.Concat(channels, tape.ints(*grid), axis=0)
    )
    return shape_ops.shaped(tape.Expand(split, shape), at.x)


@gradient("LpPool")
def _lp_pool(at: At) -> Tensor:
    """sign(x) |x|^(p - 1) times what the windows spread of g / y^(p - 1)."""
    tape, x, p = at.tape, at.x, at.get("p", 2)
    windows = Windows.of(at, x, at.y)
    lengths, counts = spatial(x), spatial(at.y)
    if lengths is None or counts is None:
        raise at.refused("lengths are unknown", "export the model with fixed shapes")
    zero, one = tape.scalar(0, x.dtype), tape.scalar(1, x.dtype)
    safe = tape.Where(tape.Equal(at.y, zero), one, at.y)
    share = at.g if p == 1 else at.g / (safe if p == 2 else safe ** float(p - 1))  # noqa: PLR2004
    spread_out = _spread_windows(at, share, windows, lengths, counts)
    if p == 1:
        return tape.Sign(x) * spread_out
    if p == 2:  # noqa: PLR2004 - the usual norm
        return x * spread_out
    return tape.Sign(x) * tape.Abs(x) ** float(p - 1) * spread_out


@gradient("MaxUnpool", inputs=(0,))
def _max_unpool(at: At) -> Tensor:
    flat = at.tape.Reshape(at.g, [-1])
    return at.tape.Gather(flat, at.input(1), axis=0)
