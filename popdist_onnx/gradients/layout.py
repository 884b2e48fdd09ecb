"""Operators that only move elements: shapes, axes, pieces."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from popdist_onnx.gradients.registry import At, gradient
from popdist_onnx.graph import shape_ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from popdist_onnx.graph.tensor import Tensor
    from popdist_onnx.graph.values import Array

_FAR = int(np.iinfo(np.int64).max)


@gradient("Reshape", "Flatten", "Squeeze", "Unsqueeze", inputs=(0,))
def _reshape(at: At) -> Tensor:
    return shape_ops.shaped(at.g, at.x)


@gradient("Transpose")
def _transpose(at: At) -> Tensor:
    order = at.get("perm", list(range(at.x.rank))[::-1])
    return at.tape.Transpose(at.g, perm=[int(axis) for axis in np.argsort(order)])


@gradient("Expand", inputs=(0,))
def _expand(at: At) -> Tensor:
    return shape_ops.unbroadcast(at.g, at.x)


@gradient("Tile", inputs=(0,))
def _tile(at: At) -> Tensor:
    """Copies are an axis of their own, which is summed."""
    tape, rank = at.tape, at.x.rank
    repeats = at.input(1).constant
    if at.x.static and repeats is not None:
        pairs = [n for pair in zip(repeats.tolist(), at.x.shape, strict=True) for n in pair]
        split = shape_ops.reshaped(at.g, pairs)
    else:
        columns = [tape.Unsqueeze(one, [1]) for one in (at.input(1), tape.Shape(at.x))]
        split = tape.Reshape(at.g, tape.Reshape(tape.Concat(*columns, axis=1), [-1]))
    return tape.ReduceSum(split, [2 * axis for axis in range(rank)], keepdims=0)


@gradient("Concat")
def _concat(at: At) -> list[Tensor | None]:
    axis = int(at.get("axis", 0)) % at.x.rank
    inputs = [at.input(index) for index in range(len(at.node.inputs))]
    lengths = [(one.dims or (None,) * (axis + 1))[axis] for one in inputs]
    known = [length for length in lengths if isinstance(length, int)]
    if len(known) == len(lengths) and all(at.wants(index) for index in range(len(inputs))):
        return list(at.tape.many("Split", len(inputs), at.g, known, axis=axis))
    edges: list[Tensor | None] = []
    start: Tensor | int = 0
    for index, (one, length) in enumerate(zip(inputs, lengths, strict=True)):
        step = length if isinstance(length, int) else at.tape.Gather(at.tape.Shape(one), [axis])
        end = start + step
        edges.append(_slice(at.g, start, end, axis) if at.wants(index) else None)
        start = end
    return edges


def _slice(tensor: Tensor, start: Tensor | int, end: Tensor | int, axis: int) -> Tensor:
    limits = [[one] if isinstance(one, int) else one for one in (start, end)]
    return tensor.tape.Slice(tensor, *limits, [axis])


@gradient("Split", inputs=(0,))
def _split(at: At) -> Tensor:
    parts = [at.g_of(index) for index in range(len(at.node.outputs))]
    return at.tape.Concat(*parts, axis=at.get("axis", 0))


@gradient("Slice", inputs=(0,))
def _slice_back(at: At) -> Tensor:
    """Zeros around the piece; with steps, zeros between its elements as well."""
    constants = [at.input(i).constant for i in range(1, len(at.node.inputs)) if at.optional(i)]
    if not at.x.static or any(one is None for one in constants):
        return _slice_back_at_run_time(at)
    starts, ends = at.known(1).tolist(), at.known(2).tolist()
    axes = at.known(3).tolist() if at.optional(3) else list(range(len(starts)))
    steps = at.known(4).tolist() if at.optional(4) else [1] * len(starts)
    if any(step != 1 for step in steps):
        return _slice_back_at_run_time(at)
    before, after = [0] * at.x.rank, [0] * at.x.rank
    for axis, start, end in zip(axes, starts, ends, strict=True):
        length = at.x.shape[axis]
        first, last, _ = slice(start, end).indices(length)
        before[axis], after[axis] = first, length - max(last, first)
    return at.tape.Pad(at.g, [*before, *after])


def _slice_back_at_run_time(at: At) -> Tensor:
    """The same slice of all positions says where the elements came from."""
    tape = at.tape
    shape = tape.Shape(at.x)
    count = tape.ReduceProd(shape, keepdims=0)
    positions = tape.Reshape(tape.Range(_int(0), count, _int(1)), shape, allowzero=1)
    taken = tape.Reshape(tape.Slice(positions, *at.node.inputs[1:]), [-1])
    zeros = tape.Reshape(shape_ops.zeros(at.x), [-1])
    filled = tape.ScatterElements(zeros, taken, tape.Reshape(at.g, [-1]), axis=0)
    return tape.Reshape(filled, shape, allowzero=1)


def _int(number: int) -> np.ndarray[tuple[()], np.dtype[np.int64]]:
    return np.asarray(number, np.int64)


@gradient("Pad", inputs=(0, 2))
def _pad(at: At) -> Tensor | list[Tensor | None]:
    """The middle of the gradient; what was mirrored or repeated is added to its source."""
    mode = at.get("mode", "constant")
    rank = at.x.rank
    if mode == "constant":
        return _pad_constant(at)
    pads = [int(pad) for pad in at.known(1)]
    axes = [int(axis) % rank for axis in at.known(3)] if at.optional(3) else list(range(rank))
    if not at.x.static:
        raise at.refused("its shape is not known", "export the model with fixed shapes")
    g = at.g
    for place, axis in enumerate(axes):
        before, after = pads[place], pads[place + len(axes)]
        if before or after:
            g = _folded(g, at.x.shape[axis], before, after, axis, mode)
    return g


def _pad_constant(at: At) -> list[Tensor | None]:
    """Negative pads cut; their gradient is zero there, which padding the other way gives.

    The gradient outside of the middle is that of the value.
    """
    axes = at.optional(3)
    back = at.tape.Neg(at.input(1))
    known = at.input(1).constant
    pads = back if known is None else at.tape.ints(*(-known).tolist())
    middle = at.tape.Pad(at.g, pads, None, axes)
    if not at.wants(2):
        return [middle]
    around = at.tape.ReduceSum(at.g, keepdims=0) - at.tape.ReduceSum(middle, keepdims=0)
    return [middle, None, shape_ops.shaped(around, at.input(2))]


def _folded(g: Tensor, length: int, before: int, after: int, axis: int, mode: str) -> Tensor:
    """Adds the padded ends of one axis to the elements that they were copied from."""
    positions = np.arange(length)
    source = _NUMPY_PADS[mode](positions, before, after)
    # A product with the copying matrix, transposed, sums the copies.
    copying = (source[:, None] == positions[None, :]).astype(g.dtype.numpy())
    tape, rank = g.tape, g.rank
    order = [*(one for one in range(rank) if one != axis), axis]
    last = g if axis == rank - 1 else tape.Transpose(g, perm=order)
    summed = last @ tape.constant(copying)
    if axis == rank - 1:
        return summed
    return tape.Transpose(summed, perm=[int(one) for one in np.argsort(order)])


_NUMPY_PADS: dict[str, Callable[[Array, int, int], Array]] = {
    "reflect": lambda positions, *width: np.pad(positions, width, mode="reflect"),
    "edge": lambda positions, *width: np.pad(positions, width, mode="edge"),
    "wrap": lambda positions, *width: np.pad(positions, width, mode="wrap"),
}


@gradient("SpaceToDepth")
def _space_to_depth(at: At) -> Tensor:
    return at.tape.DepthToSpace(at.g, blocksize=at.get("blocksize", 1), mode="DCR")


@gradient("DepthToSpace")
def _depth_to_space(at: At) -> Tensor:
    size = at.get("blocksize", 1)
    if at.get("mode", "DCR") == "DCR":
        return at.tape.SpaceToDepth(at.g, blocksize=size)
    batch, channels, height, width = at.x.shape
    blocks = at.tape.Reshape(at.g, [batch, channels // size**2, height, size, width, size])
    order = at.tape.Transpose(blocks, perm=[0, 1, 3, 5, 2, 4])
    return at.tape.Reshape(order, [batch, channels, height, width])


@gradient("Trilu", inputs=(0,))
def _trilu(at: At) -> Tensor:
    return at.tape.Trilu(at.g, at.optional(1), upper=at.get("upper", 1))


@gradient("ReverseSequence", inputs=(0,))
def _reverse_sequence(at: At) -> Tensor:
    return at.tape.ReverseSequence(
        at.g, at.input(1), batch_axis=at.get("batch_axis", 1), time_axis=at.get("time_axis", 0)
    )


@gradient("Col2Im", inputs=(0,))
def _col2im(at: At) -> Tensor:
    """Im2Col: the same columns cut out of the gradient."""
    height_width = [int(one) for one in at.known(1)]
    block = [int(one) for one in at.known(2)]
    spatial = len(block)
    pads = at.get("pads", [0] * (2 * spatial))
    strides, dilations = at.get("strides", [1] * spatial), at.get("dilations", [1] * spatial)
    tape, axes = at.tape, list(range(2, 2 + spatial))
    padded = tape.Pad(at.g, [0, 0, *pads[:spatial], 0, 0, *pads[spatial:]])
    counts = [
        (size + pads[i] + pads[i + spatial] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1
        for i, size in enumerate(height_width)
    ]
    taps = []
    for offset in itertools.product(*(range(size) for size in block)):
        starts = [place * dilations[i] for i, place in enumerate(offset)]
        ends = [start + (counts[i] - 1) * strides[i] + 1 for i, start in enumerate(starts)]
        piece = tape.Slice(padded, starts, ends, axes, strides)
        taps.append(tape.Reshape(piece, [0, 0, 1, -1]))
    columns = tape.Concat(*taps, axis=2)
    return shape_ops.shaped(columns, at.x)
