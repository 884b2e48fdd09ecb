"""Reshape, reverse, subsample, medians and slices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx_ir as ir

from popdist_onnx.errors import ValueRangeError
from popdist_onnx.graph import shape_ops
from popdist_onnx.graph.published import wrong_axis
from popdist_onnx.lowering.registry import Operation, lowering

if TYPE_CHECKING:
    from popdist_onnx.graph.tensor import Tensor


_TO_THE_END = np.iinfo(np.int64).max
_TO_THE_START = np.iinfo(np.int64).min


@lowering("Reshape")
def reshape(op: Operation) -> Tensor:
    """The shape is an attribute here; -1 is inferred, and 0 keeps the dimension."""
    (x,) = op.inputs
    wanted = op.numbers("shape")
    if x.static and -1 not in wanted:
        # A zero beyond the input's dimensions stands for no elements.
        kept = [x.shape[at] if not one and at < x.rank else one for at, one in enumerate(wanted)]
        if math.prod(kept) != math.prod(x.shape):
            raise op.misfit(
                f"takes a shape of {math.prod(x.shape)} elements for {list(x.shape)}", value=wanted
            )
    return op.tape.Reshape(x, wanted)


@lowering("Reverse")
def reverse(op: Operation) -> Tensor:
    """A slice with steps of -1."""
    (x,) = op.inputs
    given = op.numbers("dimensions")
    for one in given:
        complaint = None
        if one < 0:
            complaint = f"invalid dimension '{one}'. Only positive dimensions are supported"
        elif one >= x.rank:
            complaint = f"invalid dimension '{one}' for input tensor of rank {x.rank}"
        elif given.count(one) > 1:
            complaint = f"Dimension {one} appears multiple times"
        if complaint:
            raise ValueRangeError("PD510", f"ReverseOp: {complaint}", value=given)
    # ONNX Runtime's kernel makes an element where there is none to walk back over.
    known = x.dims or ()
    axes = [axis for axis in axes_of(op, "dimensions", x.rank) if known[axis] not in (0, 1)]
    if not axes:
        return op.tape.Identity(x)
    starts, ends = [-1] * len(axes), [_TO_THE_START] * len(axes)
    return op.tape.Slice(x, starts, ends, axes, [-1] * len(axes))


@lowering("Subsample")
def subsample(op: Operation) -> Tensor:
    """A slice with a stride for each dimension."""
    (x,) = op.inputs
    strides = op.numbers("strides")
    if 0 in strides:
        raise ValueRangeError(
            "PD510", f"Strides invalid. 0 stride at index {strides.index(0)}", value=strides
        )
    if len(strides) != x.rank or any(stride < 1 for stride in strides):
        raise op.misfit(
            "takes a positive stride for each dimension",
            value=strides,
            accepted=f"{x.rank} numbers, 1 or more",
        )
    axes = [axis for axis, stride in enumerate(strides) if stride > 1]
    if not axes:
        return op.tape.Identity(x)
    starts, ends = [0] * len(axes), [_TO_THE_END] * len(axes)
    return op.tape.Slice(x, starts, ends, axes, [strides[axis] for axis in axes])


@lowering("Slice")
def slice_(op: Operation) -> Tensor:
    """A part of the input; starts, ends and axes are attributes here."""
    (x,) = op.inputs
    starts, ends = op.numbers("starts"), op.numbers("ends")
    return op.tape.Slice(x, starts, ends, op.numbers("axes", range(len(starts))))


@lowering("DepthToSpace")
def depth_to_space(op: Operation) -> Tensor:
    """As in ``ai.onnx`` since opset 11."""
    (x,) = op.inputs
    return op.tape.DepthToSpace(x, blocksize=op.number("blocksize", 1), mode=op.text("mode", "DCR"))


@lowering("Init")
def init(op: Operation) -> Tensor:
    """Zeros, which are valid for ``InitType.NoInit`` too."""
    import onnx_ir as ir

    dtype = ir.DataType(op.number("data_type", int(ir.DataType.FLOAT)))
    content = ir.Tensor(np.zeros(1, dtype.numpy()))
    return op.tape.ConstantOfShape(op.tape.ints(*op.numbers("shape")), value=content)


@lowering("ReduceMedian")
def reduce_median(op: Operation) -> tuple[Tensor, Tensor]:
    """The lower median along axes, and its index among the elements of these axes."""
    tape = op.tape
    (x,) = op.inputs
    axes = axes_of(op, "axes", x.rank, default=range(x.rank))
    kept = [axis for axis in range(x.rank) if axis not in axes]
    count = int(np.prod([x.shape[axis] for axis in axes])) if axes else 1
    if count == 0:
        raise op.misfit("has no elements to take a median of", value=x.dims)
    rows = tape.Transpose(x, perm=[*kept, *axes])
    rows = tape.Reshape(rows, [*[x.shape[axis] for axis in kept], count])
    middle = (count - 1) // 2
    values, indices = tape.many(
        "TopK", 2, rows, tape.ints(middle + 1), axis=-1, largest=0, sorted=1
    )
    last = tape.scalar(middle)
    shape = [x.shape[axis] for axis in kept]
    if op.number("keepdims", 1):
        shape = [1 if axis in axes else x.shape[axis] for axis in range(x.rank)]
    medians = tape.Reshape(tape.Gather(values, last, axis=-1), tape.ints(*shape))
    places = tape.Reshape(tape.Gather(indices, last, axis=-1), tape.ints(*shape))
    return medians, tape.Cast(places, to=ir_int32())


def ir_int32() -> int:
    """The number of the type of PopART's indices."""
    from onnx import TensorProto

    return int(TensorProto.INT32)


def axes_of(op: Operation, name: str, rank: int, default: range | None = None) -> list[int]:
    """Axes from an attribute, in ascending order; ``default`` None if the attribute is required.

    Raises:
        ValueRangeError: There is no such dimension, or one is named twice.
    """
    given = op.numbers(name, default)
    axes = sorted(axis + rank if axis < 0 else axis for axis in given)
    if complaint := wrong_axis(given, rank):
        raise ValueRangeError("PD510", complaint, hint=f"check the {name} of {op.node.op_type}")
    if len(set(axes)) != len(axes):
        raise op.misfit(
            f"takes different dimensions of a tensor with {rank} of them for {name}",
            value=given,
        )
    return axes


# Slices at offsets that are known only at run time; they wrap around at the end, as on an IPU.
#
# They use gathers and selections with static shapes only, which are differentiable.


class Place(NamedTuple):
    """The position of a slice along one axis."""

    axis: int
    start: Tensor
    size: int
    length: int


@lowering("DynamicSlice")
def dynamic_slice(op: Operation) -> Tensor:
    """``tensor[offset : offset + size]`` along each of the axes, in the shape of a third input."""
    x = op.inputs[0]
    target = op.optional(2)
    for place in _places(op):
        positions = place.start + op.tape.constant(np.arange(place.size))
        x = op.tape.Gather(x, op.tape.Mod(positions, place.length), axis=place.axis)
    return x if target is None else shape_ops.shaped(x, target)


@lowering("DynamicUpdate")
def dynamic_update(op: Operation) -> Tensor:
    """The tensor, with the slice written over its elements."""
    x, _, piece = op.inputs
    inside, spread = _spread(op, piece)
    return op.tape.Where(inside, spread, x)


@lowering("DynamicAdd")
def dynamic_add(op: Operation) -> Tensor:
    """The tensor, with the slice added to its elements."""
    x, _, piece = op.inputs
    inside, spread = _spread(op, piece)
    return x + op.tape.Where(inside, spread, op.tape.scalar(0, x.dtype))


@lowering("DynamicZero")
def dynamic_zero(op: Operation) -> Tensor:
    """The tensor, with zeros over the slice's elements."""
    x = op.inputs[0]
    inside, _ = _spread(op, None)
    return op.tape.Where(inside, op.tape.scalar(0, x.dtype), x)


def _spread(op: Operation, piece: Tensor | None) -> tuple[Tensor, Tensor]:
    """Which elements of the tensor the slice covers, and the slice's element for each of them."""
    tape = op.tape
    covered: Tensor | None = None
    spread = piece
    if piece is not None and piece.rank < op.inputs[0].rank:
        # Leading dimensions of one element may be left out.
        missing = list(range(op.inputs[0].rank - piece.rank))
        spread = tape.Unsqueeze(piece, missing)
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
