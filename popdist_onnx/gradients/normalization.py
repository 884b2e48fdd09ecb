"""Normalizations.

With n = (x - mean) / deviation all have the same gradient in x, (h - mean(h) - n mean(h n)) /
deviation, where h is the gradient of n and means go over the axes of the statistics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from popdist_onnx.gradients.registry import At, gradient
from popdist_onnx.graph import shape_ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_onnx.graph.tensor import Tensor

_FLOAT = 1


@gradient("BatchNormalization", inputs=(0, 1, 2))
def _batch(at: At) -> list[Tensor | None]:
    return _batch_trained(at) if at.get("training_mode", 0) else _batch_fixed(at)


def _batch_fixed(at: At) -> list[Tensor | None]:
    """The statistics are constants."""
    tape, x, g = at.tape, at.x, at.g
    scale, mean, variance = at.input(1), at.input(3), at.input(4)
    inverse = 1 / tape.Sqrt(variance + at.get("epsilon", 1e-5))
    edges: list[Tensor | None] = [None, None, None]
    if at.wants(0):
        edges[0] = g * channels(scale * inverse, x.rank)
    if at.wants(1):
        centred = (x - channels(mean, x.rank)) * g
        edges[1] = over_channels(centred) * inverse
    if at.wants(2):
        edges[2] = over_channels(g)
    return edges


def _batch_trained(at: At) -> list[Tensor | None]:
    """The statistics are those of the batch.

    The gradient of x is g A + x B + C with one A, B, C per channel, in three passes over memory.
    """
    tape, x, g = at.tape, at.x, at.g
    mean, variance = _batch_statistics(at)
    inverse = 1 / tape.Sqrt(variance + at.get("epsilon", 1e-5))
    total = over_channels(g)
    product = (over_channels(g * x) - mean * total) * inverse
    edges: list[Tensor | None] = [None, product, total]
    if at.wants(0):
        count = shape_ops.count(x, [0, *range(2, x.rank)])
        a = at.input(1) * inverse
        b = -(a * inverse * product) / count
        c = -(a * total) / count - mean * b
        edges[0] = _affine(g, a, c) + x * channels(b, x.rank)
    return edges


def _batch_statistics(at: At) -> tuple[Tensor, Tensor]:
    """Mean and variance per channel; with momentum 0 the node itself gives them."""
    tape, x = at.tape, at.x
    if at.get("momentum", 0.9) == 0 and len(at.node.outputs) == 3:  # noqa: PLR2004 - all of them
        return at.output(1), at.output(2)
    axes = [0, *range(2, x.rank)]
    mean = tape.ReduceMean(x, axes, keepdims=1)
    centred = x - mean
    variance = tape.ReduceMean(centred * centred, axes, keepdims=0)
    return tape.Reshape(mean, [-1]), variance


def _affine(tensor: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """A scale and a bias per channel: what BatchNormalization does with mean 0 and variance 1."""
    tape, kind = tensor.tape, tensor.dtype.numpy()
    length = (tensor.dims or (None, None))[1]
    if not isinstance(length, int):
        return tensor * channels(scale, tensor.rank) + channels(bias, tensor.rank)
    zeros, ones = tape.constant(np.zeros(length, kind)), tape.constant(np.ones(length, kind))
    return tape.BatchNormalization(tensor, scale, bias, zeros, ones, epsilon=0.0)


def channels(vector: Tensor, rank: int) -> Tensor:
    """A value per channel, to be broadcast over batch and space.

    Args:
        vector: One value per channel.
        rank: Rank of what it is broadcast to.

    Returns:
        The values with as many axes of length 1 behind them as there are spatial ones.
    """
    return vector.tape.Reshape(vector, [-1, *[1] * (rank - 2)]) if rank > 2 else vector  # noqa: PLR2004


def over_channels(tensor: Tensor) -> Tensor:
    """Sums over batch and space.

    Args:
        tensor: A tensor with samples, channels and spatial axes.

    Returns:
        One value per channel.
    """
    return tensor.tape.ReduceSum(tensor, [0, *range(2, tensor.rank)], keepdims=0)


def normalized_gradient(
    h: Tensor, n: Tensor, inverse: Tensor, axes: Sequence[int], *, centred: bool = True
) -> Tensor:
    """The gradient of what was normalized.

    Args:
        h: Gradient of the normalized tensor.
        n: The normalized tensor.
        inverse: 1 / deviation, to be broadcast.
        axes: The axes that the statistics were taken over.
        centred: Whether the mean was taken off.

    Returns:
        (h - mean(h) - n mean(h n)) / deviation, without mean(h) where nothing was taken off.
    """
    tape = h.tape
    shared = n * tape.ReduceMean(h * n, axes, keepdims=1)
    if centred:
        shared = shared + tape.ReduceMean(h, axes, keepdims=1)
    return (h - shared) * inverse


@gradient("LayerNormalization", inputs=(0, 1, 2))
def _layer(at: At) -> list[Tensor | None]:
    x, g, scale = at.x, at.g, at.input(1)
    axes = list(range(at.get("axis", -1) % x.rank, x.rank))
    n, inverse = _standardized(at, axes)
    edges: list[Tensor | None] = [None, None, None]
    if at.wants(0):
        edges[0] = normalized_gradient(g * scale, n, inverse, axes)
        for index, slope in ((1, None), (2, -1 * inverse * inverse * n)):
            if index < len(at.gradients) and at.gradients[index] is not None:
                # The mean and 1 / deviation are outputs too; all elements share their gradients.
                share = at.tape.Cast(at.g_of(index), to=x.dtype.value) / _count(x, axes)
                edges[0] = edges[0] + (share if slope is None else share * slope)
    if at.wants(1):
        edges[1] = shape_ops.unbroadcast(g * n, scale)
    if at.wants(2):
        edges[2] = shape_ops.unbroadcast(g, at.input(2))
    return edges


def _count(x: Tensor, axes: Sequence[int]) -> Tensor:
    """How many elements statistics over these axes are taken of."""
    lengths = x.tape.Gather(x.tape.Shape(x), x.tape.ints(*axes))
    return x.tape.Cast(x.tape.ReduceProd(lengths, keepdims=0), to=x.dtype.value)


def _standardized(at: At, axes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The normalized input and 1 / deviation, from the node's own statistics where it has them."""
    tape, x = at.tape, at.x
    outputs = at.node.outputs
    if len(outputs) == 3 and outputs[1].name and outputs[2].name and x.dtype.value == _FLOAT:  # noqa: PLR2004
        mean, inverse = at.output(1), at.output(2)
        return (x - mean) * inverse, inverse
    centred = x - tape.ReduceMean(x, axes, keepdims=1)
    variance = tape.ReduceMean(centred * centred, axes, keepdims=1)
    inverse = 1 / tape.Sqrt(variance + at.get("epsilon", 1e-5))
    return centred * inverse, inverse


@gradient("RMSNormalization")
def _rms(at: At) -> list[Tensor | None]:
    tape, x, g, scale = at.tape, at.x, at.g, at.input(1)
    axes = list(range(at.get("axis", -1) % x.rank, x.rank))
    square = tape.ReduceMean(x * x, axes, keepdims=1)
    inverse = 1 / tape.Sqrt(square + at.get("epsilon", 1e-5))
    n = x * inverse
    return [
        normalized_gradient(g * scale, n, inverse, axes, centred=False) if at.wants(0) else None,
        shape_ops.unbroadcast(g * n, scale) if at.wants(1) else None,
    ]


@gradient("InstanceNormalization")
def _instance(at: At) -> list[Tensor | None]:
    x, g, scale = at.x, at.g, at.input(1)
    axes = list(range(2, x.rank))
    n, inverse = _standardized(at, axes)
    return [
        normalized_gradient(g * channels(scale, x.rank), n, inverse, axes),
        over_channels(g * n) if at.wants(1) else None,
        over_channels(g) if at.wants(2) else None,
    ]


@gradient("GroupNormalization")
def _group(at: At) -> list[Tensor | None]:
    """Groups of channels are an axis of their own; until opset 20 each has one scale."""
    tape, x, g, scale = at.tape, at.x, at.g, at.input(1)
    groups = at.get("num_groups", 1)
    lengths = shape_ops.lengths(x)
    per_group = at.tape.opset < 21 and scale.dims == (groups,)  # noqa: PLR2004 - the opset
    split = tape.Reshape(x, [0, groups, -1])
    mean = tape.ReduceMean(split, [2], keepdims=1)
    centred = split - mean
    variance = tape.ReduceMean(centred * centred, [2], keepdims=1)
    inverse = 1 / tape.Sqrt(variance + at.get("epsilon", 1e-5))
    n = centred * inverse
    if per_group:
        rows = tape.Reshape(g, [0, groups, -1])
        h, over, whole = rows * tape.Unsqueeze(scale, [1]), rows, n
    else:
        h = tape.Reshape(g * channels(scale, x.rank), [0, groups, -1])
        over, whole = g, tape.Reshape(n, lengths)
    return [
        tape.Reshape(normalized_gradient(h, n, inverse, [2]), lengths),
        over_channels(over * whole) if at.wants(1) else None,
        over_channels(over) if at.wants(2) else None,
    ]


@gradient("MeanVarianceNormalization")
def _mean_variance(at: At) -> Tensor:
    """Y = (x - mean) / (deviation + 1e-9)."""
    tape, x = at.tape, at.x
    axes = list(at.get("axes", [0, 2, 3]))
    centred = x - tape.ReduceMean(x, axes, keepdims=1)
    variance = tape.ReduceMean(centred * centred, axes, keepdims=1)
    return normalized_gradient(at.g, at.y, 1 / (tape.Sqrt(variance) + 1e-9), axes)


@gradient("LRN")
def _lrn(at: At) -> Tensor:
    """Y = x s^-beta with s = bias + alpha / size * sum of x x over neighbouring channels."""
    x, g = at.x, at.g
    size, beta, bias = at.get("size", 1), at.get("beta", 0.75), at.get("bias", 1.0)
    share = at.get("alpha", 1e-4) / size
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    s = bias + share * _neighbours(x * x, before, after)
    # The neighbours of a channel see it from the other side.
    back = _neighbours(g * at.y / s, after, before)
    return g * s**-beta - (2 * share * beta) * x * back


def _neighbours(tensor: Tensor, before: int, after: int) -> Tensor:
    """Sums over neighbouring channels: an average pool times its length."""
    tape, size = tensor.tape, before + 1 + after
    shape = shape_ops.lengths(tensor)
    stacked = tape.Reshape(tensor, [0, 1, _channel_count(tensor), -1])
    pooled = tape.AveragePool(
        stacked,
        kernel_shape=[size, 1],
        pads=[before, 0, after, 0],
        count_include_pad=1,
    )
    return tape.Reshape(pooled * float(size), shape)


def _channel_count(tensor: Tensor) -> int:
    known = (tensor.dims or (None, None))[1]
    return known if isinstance(known, int) else 0
