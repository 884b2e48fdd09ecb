"""Convolutions.

The gradient of the input is a transposed convolution. That of the weights is a convolution of the
input by the output's gradient, with the batch as channels; a session computes it faster by formulas
that fit its kernels (`popdist_onnx.runtime.convolutions`), for which the node is marked.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from popdist_onnx.gradients.registry import At, gradient
from popdist_onnx.gradients.windows import Windows, spatial
from popdist_onnx.graph import names, shape_ops

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from popdist_onnx.graph.tensor import Tensor


# Gradients of a convolution's weights as matrix products.
#
# Which of the formulas is fastest follows from the shapes. On ONNX Runtime's CPU kernels, one
# thread (ms; batch 32, kernel 3x3; blocked: `popdist_onnx.runtime.convolutions`):
#
# =========================  ==========  ============  ===========  =======
# channels, length           a product   columns,      a            blocked
#                            per tap     one product   convolution
# =========================  ==========  ============  ===========  =======
# 16 -> 16, 32x32            5.9          7.8          11.3         3.4
# 64 -> 64, 16x16            9.7         12.0          18.2         6.6
# 256 -> 256, 4x4            8.4         21.3          12.8         -
# 3 -> 16, 32x32             3.4          1.2           2.2         -
# =========================  ==========  ============  ===========  =======
#
# Every function takes ``x`` ``[N, C, ...]`` that windows slide over, the gradient ``g``
# ``[N, M, ...]`` of what each window gives, and the shape of the weights.


# Fewer channels than this make products per tap too narrow.
_NARROW = 16


def is_narrow(shape: Sequence[int], windows: Windows) -> bool:
    """Whether all taps belong into one product.

    Args:
        shape: Of the weights.
        windows: The windows.

    Returns:
        True where products per tap would have few columns.
    """
    return shape[1] < _NARROW and any(size > 1 for size in windows.kernel)


def products(x: Tensor, g: Tensor, shape: Sequence[int], windows: Windows, groups: int) -> Tensor:
    """The gradient by the formula that fits the shapes."""
    if groups > 1 and shape[1] == 1 and shape[0] == groups:
        return _by_channel(x, g, shape, windows)
    if groups == 1 and is_narrow(shape, windows):
        return _by_columns(x, g, shape, windows)
    return _by_taps(x, g, shape, windows, groups)


def _by_taps(x: Tensor, g: Tensor, shape: Sequence[int], windows: Windows, groups: int) -> Tensor:
    """One matrix product per element of the window, channels by channels."""
    tape, rank = x.tape, x.rank
    swap = [1, 0, *range(2, rank)]
    rows = [shape[0], -1] if groups == 1 else [groups, shape[0] // groups, -1]
    columns = [shape[1], -1] if groups == 1 else [groups, shape[1], -1]
    left = tape.Reshape(tape.Transpose(g, perm=swap), rows)
    products = []
    for piece in _pieces(tape.Transpose(x, perm=swap), windows, spatial(g) or ()):
        right = tape.Reshape(piece, columns)
        if groups == 1:
            product = tape.Gemm(left, right, transB=1)
        else:
            product = tape.MatMul(left, tape.Transpose(right, perm=[0, 2, 1]))
        products.append(product)
    return _assembled(products, shape)


def _assembled(products: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """Puts one matrix per tap together to weights."""
    tape = products[0].tape
    if len(products) == 1:
        return tape.Reshape(products[0], tape.ints(*shape))
    lead = [shape[0], shape[1], 1]
    taps = [tape.Reshape(product, lead) for product in products]
    return tape.Reshape(tape.Concat(*taps, axis=2), tape.ints(*shape))


def _by_columns(x: Tensor, g: Tensor, shape: Sequence[int], windows: Windows) -> Tensor:
    """All windows side by side, then one product."""
    tape = x.tape
    pieces = list(_pieces(x, windows, spatial(g) or ()))
    width = shape[1] * len(pieces)
    columns = tape.Reshape(tape.Concat(*pieces, axis=1), [0, width, -1])
    rows = tape.Reshape(g, [0, shape[0], -1])
    products = tape.MatMul(rows, tape.Transpose(columns, perm=[0, 2, 1]))
    total = tape.ReduceSum(products, [0], keepdims=0)
    split = tape.Reshape(total, [shape[0], len(pieces), shape[1]])
    return tape.Reshape(tape.Transpose(split, perm=[0, 2, 1]), tape.ints(*shape))


def _by_channel(x: Tensor, g: Tensor, shape: Sequence[int], windows: Windows) -> Tensor:
    """Depthwise: every channel meets only its own."""
    tape = x.tape
    axes = [0, *range(2, x.rank)]
    sums = [
        tape.ReduceSum(g * piece, axes, keepdims=0)
        for piece in _pieces(x, windows, spatial(g) or ())
    ]
    return _assembled(sums, shape)


def _pieces(x: Tensor, windows: Windows, counts: Sequence[int]) -> Iterator[Tensor]:
    """For every element of the window: what it meets of the input."""
    tape, rank = x.tape, windows.rank
    if windows.padded:
        x = tape.Pad(x, [0, 0, *windows.before, 0, 0, *windows.after])
    axes = list(range(2, 2 + rank))
    known = spatial(x) or ()
    for offset in windows.offsets():
        ends = [
            start + (counts[axis] - 1) * windows.strides[axis] + 1
            for axis, start in enumerate(offset)
        ]
        whole = all(stride == 1 for stride in windows.strides) and list(known) == ends
        if whole and not any(offset):
            yield x
        else:
            yield tape.Slice(x, list(offset), ends, axes, list(windows.strides))


WEIGHT_GRADIENT = "weight-gradient"
"""Role of the convolution that makes the gradient of another one's weights."""

# Larger windows would take more products than a convolution is long.
_MANY_TAPS = 25
_IMAGES = 4  # dimensions: batch, channels, height, width


@gradient("Conv")
def _conv(at: At) -> list[Tensor | None]:
    x, w, g = at.x, at.input(1), at.g
    if x.static and 0 in x.shape:
        # The kernels know no convolution of nothing.
        return [shape_ops.zeros(at.input(index)) for index in range(len(at.node.inputs))]
    windows = Windows.of(at, x, at.y, w.lengths[2:])
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
    windows = Windows.of(at, at.y, x, w.lengths[2:]) if _explicit(at) else None
    counts, lengths = spatial(x), spatial(at.y)
    if counts is None or lengths is None:
        if windows is not None and not any(at.get("output_padding", [])):
            return windows
        raise at.refused("lengths are unknown", "export the model with fixed shapes")
    rank = len(counts)
    kernel = tuple(int(one or 0) for one in w.lengths[2:])
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
