"""Computes convolutions over maps that are smaller than their weights, as matrix products.

Blocked kernels need the weights in another order in every step, and ordinary kernels read all
weights once for each image of a batch. Here the windows of all images are the columns of a matrix.
A step reads the weights as they are stored, once for the output and once for the gradient of the
images. The gradient of the weights is a product too, into which an update can be folded.

A product with a matrix of zeros and ones reads the windows, and one with its transpose writes them
back. It includes padding, strides and dilations, and costs little where a map has few elements.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_onnx.gradients.windows import Windows
    from popdist_onnx.graph.tensor import Tensor
    from popdist_onnx.graph.values import Array

_MOST_WINDOWS = 4
"""Windows of all images for each output channel: more would outgrow the weights."""

_LEAST_RATIO = 8
"""Output channels for each element of a map: reading the windows then costs less than an eighth."""


def is_small(images: Sequence[int], results: Sequence[int]) -> bool:
    """Whether products are faster than the kernels of convolutions.

    Args:
        images: Shape of what the windows slide over, ``[N, C, ...]``.
        results: Shape with one element for each window, ``[N, M, ...]``.

    Returns:
        True for few windows of small maps, beside many channels.
    """
    batch, channels, *counts = results
    few = 0 < batch * math.prod(counts) <= _MOST_WINDOWS * channels
    return few and math.prod(images[1:]) > 0 and math.prod(images[2:]) * _LEAST_RATIO <= channels


def convolution(
    x: Tensor, w: Tensor, bias: Tensor | None, windows: Windows, results: Sequence[int]
) -> Tensor:
    """A convolution ``[N, M, ...]`` of images ``[N, C, ...]`` by weights ``[M, C, ...]``."""
    tape = x.tape
    batch, channels, *counts = results
    columns = _columns(x, windows, counts)
    if bias is not None:
        bias = tape.Reshape(bias, [-1, 1])
    made = tape.Gemm(tape.Reshape(w, [channels, -1]), columns, bias)
    return _batch_first(made, [batch, channels, *counts])


def gradient_of_images(g: Tensor, w: Tensor, windows: Windows, images: Sequence[int]) -> Tensor:
    """The gradient ``[N, C, ...]`` of what windows slide over, of shape ``images``."""
    tape = g.tape
    batch, channels, *lengths = images
    flat = tape.Reshape(w, [g.shape[1], -1])
    columns = tape.Gemm(flat, _channels_first(g), transA=1)
    counts = g.shape[2:]
    rows = _batch_first(columns, [batch, columns.shape[0], *counts])
    chosen = _chosen(windows, lengths, counts)
    spread = tape.MatMul(tape.Reshape(rows, [batch * channels, -1]), chosen.T.copy())
    return tape.Reshape(spread, list(images))


def gradient_of_weights(x: Tensor, g: Tensor, shape: Sequence[int], windows: Windows) -> Tensor:
    """The gradient of weights ``[M, C, ...]``."""
    tape = x.tape
    columns = _columns(x, windows, g.shape[2:])
    return tape.Reshape(tape.Gemm(_channels_first(g), columns, transB=1), list(shape))


def _columns(x: Tensor, windows: Windows, counts: Sequence[int]) -> Tensor:
    """The windows of all images as ``[C * elements of a window, N * windows]``."""
    tape = x.tape
    batch, channels, *lengths = x.shape
    flat = tape.Reshape(x, [batch * channels, -1])
    read = tape.MatMul(flat, _chosen(windows, lengths, counts))
    each = math.prod(windows.kernel)
    return _channels_first(tape.Reshape(read, [batch, channels * each, math.prod(counts)]))


def _chosen(windows: Windows, lengths: Sequence[int], counts: Sequence[int]) -> Array:
    """Which element each window reads: ``[elements of a map, elements of a window * windows]``."""
    padded = [
        length + before + after
        for length, before, after in zip(lengths, windows.before, windows.after, strict=True)
    ]
    # Windows of a transposed convolution may reach beyond the padding.
    space = [max(length, windows.reach(axis, counts[axis])) for axis, length in enumerate(padded)]
    places = np.full(space, -1)
    inner = tuple(
        slice(before, before + length)
        for before, length in zip(windows.before, lengths, strict=True)
    )
    places[inner] = np.arange(math.prod(lengths)).reshape(lengths)
    read = [
        places[
            tuple(
                slice(start, start + (count - 1) * stride + 1, stride)
                for start, count, stride in zip(offset, counts, windows.strides, strict=True)
            )
        ].ravel()
        for offset in windows.offsets()
    ]
    matrix: Array = np.arange(math.prod(lengths))[:, None] == np.concatenate(read)
    return matrix.astype(np.float32)


def _channels_first(images: Tensor) -> Tensor:
    """``[N, M, ...]`` as a matrix ``[M, N * ...]``."""
    tape = images.tape
    batch, channels, *lengths = images.shape
    if math.prod(lengths) == 1:
        return tape.Transpose(tape.Reshape(images, [batch, channels]), perm=[1, 0])
    flat = tape.Reshape(images, [batch, channels, -1])
    return tape.Reshape(tape.Transpose(flat, perm=[1, 0, 2]), [channels, -1])


def _batch_first(matrix: Tensor, shape: Sequence[int]) -> Tensor:
    """A matrix ``[M, N * ...]`` as images of ``shape``, ``[N, M, ...]``."""
    tape = matrix.tape
    parts = tape.Reshape(matrix, [shape[1], shape[0], -1])
    return tape.Reshape(tape.Transpose(parts, perm=[1, 0, 2]), list(shape))
