"""Slices whose place is known only when the graph runs; they wrap around at the end, as on an IPU.

Everything is gathers and selections with static shapes, which any reverse mode can go through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx_ir as ir

from popdist_onnx.lowering.registry import Operation, lowering
from popdist_onnx.lowering.shapes import axes_of

if TYPE_CHECKING:
    from popdist_onnx.graph.tensor import Tensor


class Place(NamedTuple):
    """Where a slice lies along one axis."""

    axis: int
    start: Tensor
    size: int
    length: int


@lowering("DynamicSlice")
def dynamic_slice(op: Operation) -> Tensor:
    """``tensor[offset : offset + size]`` along each of the axes."""
    x = op.inputs[0]
    for place in _places(op):
        positions = place.start + op.tape.constant(np.arange(place.size))
        x = op.tape.Gather(x, op.tape.Mod(positions, place.length), axis=place.axis)
    return x


@lowering("DynamicUpdate")
def dynamic_update(op: Operation) -> Tensor:
    """The tensor, with the slice in place of what was there."""
    x, _, piece = op.inputs
    inside, spread = _spread(op, piece)
    return op.tape.Where(inside, spread, x)


@lowering("DynamicAdd")
def dynamic_add(op: Operation) -> Tensor:
    """The tensor, with the slice added to what was there."""
    x, _, piece = op.inputs
    inside, spread = _spread(op, piece)
    return x + op.tape.Where(inside, spread, op.tape.scalar(0, x.dtype))


@lowering("DynamicZero")
def dynamic_zero(op: Operation) -> Tensor:
    """The tensor, with zeros in place of what was there."""
    x = op.inputs[0]
    inside, _ = _spread(op, None)
    return op.tape.Where(inside, op.tape.scalar(0, x.dtype), x)


def _spread(op: Operation, piece: Tensor | None) -> tuple[Tensor, Tensor]:
    """Which elements of the tensor the slice covers, and the slice's element for each of them."""
    tape = op.tape
    covered: Tensor | None = None
    spread = piece
    for place in _places(op):
        relative = tape.Mod(tape.constant(np.arange(place.length)) - place.start, place.length)
        inside = relative < place.size
        if spread is not None:
            nearest = tape.Where(inside, relative, tape.scalar(0))
            spread = tape.Gather(spread, nearest, axis=place.axis)
        along = [1] * op.inputs[0].rank
        along[place.axis] = place.length
        inside = tape.Reshape(inside, along)
        covered = inside if covered is None else tape.And(covered, inside)
    if covered is None:
        covered = tape.constant(np.asarray(True))  # noqa: FBT003 - an array's only element
    return covered, covered if spread is None else spread


def _places(op: Operation) -> list[Place]:
    x, offset = op.inputs[:2]
    sizes = op.numbers("sizes")
    given = op.numbers("axes")
    axes = axes_of(op, "axes", x.rank)
    if len(sizes) != len(axes):
        raise op.misfit("takes a size for each axis", value={"axes": given, "sizes": sizes})
    lengths = [x.shape[axis] for axis in (one % x.rank for one in given)]
    if any(not 0 < size <= length for size, length in zip(sizes, lengths, strict=True)):
        raise op.misfit(
            "takes sizes that fit the tensor", value=sizes, accepted=f"1 to {lengths} each"
        )
    starts = op.tape.Reshape(op.tape.Cast(offset, to=ir.DataType.INT64), [-1])
    return [
        Place(axis % x.rank, op.tape.Gather(starts, op.tape.ints(number), axis=0), size, length)
        for number, (axis, size, length) in enumerate(zip(given, sizes, lengths, strict=True))
    ]
