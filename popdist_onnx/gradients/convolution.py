"""Convolutions.

The gradient of the input is a transposed convolution. That of the weights is a convolution of the
input by the output's gradient, with the batch as channels; a session computes it faster by formulas
that fit its kernels (`popdist_onnx.runtime.convolutions`), for which the node is marked.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from popdist_onnx.gradients.registry import At, gradient
from popdist_onnx.gradients.window_products import products
from popdist_onnx.gradients.windows import Windows, spatial
from popdist_onnx.graph import names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_onnx.graph.tensor import Tensor

WEIGHT_GRADIENT = "weight-gradient"
"""Role of the convolution that makes the gradient of another one's weights."""

# Larger windows would take more products than a convolution is long.
_MANY_TAPS = 25
_IMAGES = 4  # dimensions: batch, channels, height, width


@gradient("Conv")
def _conv(at: At) -> list[Tensor | None]:
    x, w, g = at.x, at.input(1), at.g
    windows = Windows.of(at, x, at.y, (w.dims or ())[2:])
    groups = at.get("group", 1)
    return [
        _data_gradient(at, windows, groups) if at.wants(0) else None,
        weight_gradient(x, g, w, windows, groups) if at.wants(1) else None,
        _bias_gradient(g) if at.wants(2) else None,
    ]


@gradient("ConvTranspose")
def _conv_transpose(at: At) -> list[Tensor | None]:
    """Input and output of a convolution exchange their roles."""
    x, w, g = at.x, at.input(1), at.g
    windows = _transposed_windows(at, x, w)
    groups = at.get("group", 1)
    data = at.tape.Conv(
        g,
        w,
        kernel_shape=windows.kernel,
        strides=windows.strides,
        dilations=windows.dilations,
        pads=windows.pads,
        group=groups,
    )
    return [
        data,
        weight_gradient(g, x, w, windows, groups) if at.wants(1) else None,
        _bias_gradient(g) if at.wants(2) else None,
    ]


def _transposed_windows(at: At, x: Tensor, w: Tensor) -> Windows:
    """Padding that makes the convolution of the output as large as the input."""
    windows = Windows.of(at, at.y, x, (w.dims or ())[2:]) if _explicit(at) else None
    counts, lengths = spatial(x), spatial(at.y)
    if counts is None or lengths is None:
        if windows is not None and not any(at.get("output_padding", [])):
            return windows
        raise at.refused("lengths are unknown", "export the model with fixed shapes")
    rank = len(counts)
    kernel = tuple(int(one or 0) for one in (w.dims or ())[2:])
    strides = tuple(at.get("strides", [1] * rank))
    dilations = tuple(at.get("dilations", [1] * rank))
    bare = Windows(kernel, strides, dilations, (0,) * rank, (0,) * rank)
    extra = at.get("output_padding", [0] * rank)
    if windows is not None and at.node.attributes.get("output_shape") is None:
        before = windows.before
    else:
        before = _split_padding(at, bare, counts, lengths, extra)
    # What output padding adds is covered by no window; the convolution's floor leaves it out.
    after = tuple(
        bare.reach(axis, counts[axis]) - lengths[axis] - before[axis] for axis in range(rank)
    )
    if any(one < 0 for one in after):
        after = tuple(max(0, one) for one in after)
    return Windows(kernel, strides, dilations, tuple(before), after)


def _explicit(at: At) -> bool:
    return at.get("auto_pad", "NOTSET") in ("NOTSET", "VALID")


def _split_padding(
    at: At, bare: Windows, counts: Sequence[int], lengths: Sequence[int], extra: Sequence[int]
) -> tuple[int, ...]:
    totals = [
        max(0, bare.reach(axis, counts[axis]) + extra[axis] - lengths[axis])
        for axis in range(bare.rank)
    ]
    upper = at.get("auto_pad", "NOTSET") == "SAME_UPPER"
    return tuple(total // 2 if upper else total - total // 2 for total in totals)


def _bias_gradient(g: Tensor) -> Tensor:
    return g.tape.ReduceSum(g, [0, *range(2, g.rank)], keepdims=0)


def _data_gradient(at: At, windows: Windows, groups: int) -> Tensor:
    x, w, g, tape = at.x, at.input(1), at.g, at.tape
    lengths, counts = spatial(x), spatial(g)
    settings = {
        "kernel_shape": windows.kernel,
        "strides": windows.strides,
        "dilations": windows.dilations,
        "group": groups,
    }
    if lengths is not None and counts is not None:
        rest = windows.rest(lengths, counts)
        return tape.ConvTranspose(g, w, pads=windows.pads, output_padding=rest, **settings)
    if all(stride == 1 for stride in windows.strides):
        return tape.ConvTranspose(g, w, pads=windows.pads, **settings)
    # How many elements the last window left over shows at run time: pad too much, then cut.
    whole = tape.ConvTranspose(g, w, pads=[*windows.before, *[0] * windows.rank], **settings)
    padded = tape.Pad(whole, [0] * (2 + windows.rank + 2) + [one - 1 for one in windows.strides])
    axes = list(range(2, x.rank))
    return tape.Slice(padded, [0] * windows.rank, tape.Shape(x, start=2), axes)


def weight_gradient(x: Tensor, g: Tensor, w: Tensor, windows: Windows, groups: int) -> Tensor:
    """Every weight's gradient: products of input and output gradient, summed over all windows.

    Args:
        x: What the windows slide over, ``[N, C, ...]``.
        g: Gradient of what each window gives, ``[N, M, ...]``.
        w: The weights, ``[M, C / groups, ...]``.
        windows: The windows.
        groups: Groups of channels.

    Returns:
        The gradient of the weights.
    """
    taps = math.prod(windows.kernel)
    static = spatial(g) is not None and spatial(x) is not None and w.static
    if not static or taps >= _MANY_TAPS or (groups == 1 and x.static and x.rank == _IMAGES):
        return _by_convolution(x, g, windows, groups)
    return products(x, g, w.shape, windows, groups)


def _by_convolution(x: Tensor, g: Tensor, windows: Windows, groups: int) -> Tensor:
    """A convolution over the batch: channels are the batch, strides and dilations exchange."""
    tape, rank = x.tape, windows.rank
    rest = list(range(2, 2 + rank))
    if groups == 1:
        big = tape.Transpose(x, perm=[1, 0, *rest])
        small = tape.Transpose(g, perm=[1, 0, *rest])
    else:
        big = _group_major(x, groups, first=False)
        small = _group_major(g, groups, first=True)
    made = tape.Conv(
        big,
        small,
        strides=windows.dilations,
        dilations=windows.strides,
        pads=windows.pads,
        group=groups,
    )
    if groups == 1:
        made.value.producer().metadata_props[names.ROLE] = WEIGHT_GRADIENT  # type: ignore[union-attr]
    cut = tape.Slice(made, [0] * rank, list(windows.kernel), rest)
    return tape.Transpose(cut, perm=[1, 0, *rest])


def _group_major(tensor: Tensor, groups: int, *, first: bool) -> Tensor:
    """Batch and groups become channels: [c, G * N, ...], or [G * c, N, ...] for the kernel."""
    tape, rank = tensor.tape, tensor.rank
    known = (tensor.dims or (None, None))[1]
    if not isinstance(known, int):
        raise TypeError(f"the channels of {tensor.name!r} are not known")
    each = known // groups
    shape = tape.Shape(tensor, start=2)
    batch = tape.Shape(tensor, start=0, end=1)
    split = tape.Reshape(tensor, tape.Concat(batch, tape.ints(groups, each), shape, axis=0))
    rest = list(range(3, rank + 1))
    if first:
        order = tape.Transpose(split, perm=[1, 2, 0, *rest])
        target = tape.Concat(tape.ints(known), batch, shape, axis=0)
    else:
        order = tape.Transpose(split, perm=[2, 1, 0, *rest])
        target = tape.Concat(tape.ints(each), batch * groups, shape, axis=0)
    return tape.Reshape(order, target)
