"""Gradients of a convolution's weights as matrix products.

Which of the formulas is fastest follows from the shapes. On ONNX Runtime's CPU kernels, one thread
(ms; batch 32, kernel 3x3; blocked: `popdist_onnx.runtime.convolutions`):

=========================  ==========  ============  ===========  =======
channels, length           a product   columns,      a            blocked
                           per tap     one product   convolution
=========================  ==========  ============  ===========  =======
16 -> 16, 32x32            5.9          7.8          11.3         3.4
64 -> 64, 16x16            9.7         12.0          18.2         6.6
256 -> 256, 4x4            8.4         21.3          12.8         -
3 -> 16, 32x32             3.4          1.2           2.2         -
=========================  ==========  ============  ===========  =======

Every function takes ``x`` ``[N, C, ...]`` that windows slide over, the gradient ``g``
``[N, M, ...]`` of what each window gives, and the shape of the weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.gradients.windows import Windows, spatial

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from popdist_onnx.graph.tensor import Tensor

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
