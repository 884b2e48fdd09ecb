"""Reshape, reverse, subsample, medians, dynamic slices and scatters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx_ir as ir

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
    if any(not 0 <= axis < rank for axis in axes) or len(set(axes)) != len(axes):
        raise op.misfit(
            f"takes different dimensions of a tensor with {rank} of them for {name}",
            value=given,
            accepted=f"{-rank} to {rank - 1}",
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
    """``tensor[offset : offset + size]`` along each of the axes."""
    x = op.inputs[0]
    for place in _places(op):
        positions = place.start + op.tape.constant(np.arange(place.size))
        x = op.tape.Gather(x, op.tape.Mod(positions, place.length), axis=place.axis)
    return x


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


# Rows and elements that are moved to the places of indices.


_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_REDUCTIONS = {"Sum": "add", "Max": "max", "Min": "min"}


@lowering("ScatterReduce")
def scatter_reduce(op: Operation) -> Tensor:
    """Combines the values of each index along the axis.

    An index without a value gets the third input's element, or zero.
    """
    tape = op.tape
    values, indices = op.inputs[:2]
    start = op.optional(2)
    dtype = values.dtype
    if dtype in _HALF:
        # ONNX Runtime's kernel combines no half-precision numbers; single precision also sums
        # better.
        values = tape.Cast(values, to=ir.DataType.FLOAT)
        start = None if start is None else tape.Cast(start, to=ir.DataType.FLOAT)
    rank = values.rank
    axis = op.number("axis", -1)
    if not -rank <= axis < rank:
        raise op.misfit("has no such axis", value=axis, accepted=f"{-rank} to {rank - 1}")
    axis %= rank
    indices = _indices(op, values, indices, axis)
    shape = list(values.shape)
    shape[axis] = op.number("axis_size", 0)
    name = op.text("reduction", "Sum")
    if name not in _REDUCTIONS:
        raise op.misfit("has no such reduction", value=name, accepted=", ".join(_REDUCTIONS))

    def scatter(base: Tensor, updates: Tensor, how: str) -> Tensor:
        return tape.ScatterElements(base, indices, updates, axis=axis, reduction=how)

    if start is None and name != "Sum":
        # Zero is no neutral element of a maximum.
        info = np.finfo if values.dtype.is_floating_point() else np.iinfo
        ends = info(values.dtype.numpy())
        end = np.asarray(ends.min if name == "Max" else ends.max).item()
        lowest = _filled(op, shape, end, values.dtype)
        zeros, ones = (
            tape.constant(np.full(one, number, np.int64))
            for one, number in ((shape, 0), (values.shape, 1))
        )
        covered = tape.Cast(scatter(zeros, ones, "none"), to=ir.DataType.BOOL)
        extremes = scatter(lowest, values, _REDUCTIONS[name])
        result = tape.Where(covered, extremes, tape.scalar(0, values.dtype))
    else:
        start = _filled(op, shape, 0, values.dtype) if start is None else start
        result = scatter(start, values, _REDUCTIONS[name])
    return tape.Cast(result, to=dtype) if dtype in _HALF else result


def _indices(op: Operation, values: Tensor, indices: Tensor, axis: int) -> Tensor:
    tape = op.tape
    indices = tape.Cast(indices, to=ir.DataType.INT64)
    if indices.rank == 1 and values.rank > 1:
        along = [1] * values.rank
        along[axis] = values.shape[axis]
        indices = tape.Expand(tape.Reshape(indices, along), list(values.shape))
    if indices.shape != values.shape:
        raise op.misfit(
            "takes one index per value, or one per position along the axis",
            value={"values": values.dims, "indices": indices.dims},
        )
    return indices


def _filled(op: Operation, shape: list[int], number: float, dtype: ir.DataType) -> Tensor:
    content = ir.Tensor(np.asarray([number]).astype(dtype.numpy()))
    return op.tape.ConstantOfShape(op.tape.ints(*shape), value=content)


@lowering("SequenceSlice")
def sequence_slice(op: Operation) -> Tensor:
    """Copies run i, ``source[from_i : from_i + n_i]``, to ``destination[to_i : to_i + n_i]``.

    Rows that no run covers are zero, or with ``zeroUnused=0`` those of the destination. Where runs
    overlap in the destination, the last one counts.
    """
    source, destination, lengths, begins, ends = op.inputs
    unused = None if op.number("zeroUnused", 1) else destination
    return moved_rows(source, destination.shape[0], lengths, begins, ends, unused=unused)


def moved_rows(
    source: Tensor,
    rows: int,
    lengths: Tensor,
    begins: Tensor,
    ends: Tensor,
    unused: Tensor | None = None,
) -> Tensor:
    """Runs of rows at new places among ``rows``; the rest is that of ``unused``, or zero.

    Where runs overlap, the last one counts.
    """
    tape = source.tape
    lengths, begins, ends = (
        tape.Reshape(tape.Cast(one, to=ir.DataType.INT64), [1, -1])
        for one in (lengths, begins, ends)
    )
    runs = lengths.shape[1]
    position = tape.constant(np.arange(rows).reshape(-1, 1)) - ends
    # One row per row of the result, one column per run.
    covers = tape.And(position > -1, position < lengths)
    order = tape.Where(covers, tape.constant(np.arange(runs).reshape(1, -1)), tape.scalar(-1))
    last = tape.ReduceMax(order, [1], keepdims=1)
    covered = last > -1
    taken = tape.GatherElements(
        position + begins, tape.Where(covered, last, tape.scalar(0)), axis=1
    )
    taken = tape.Reshape(tape.Where(covered, taken, tape.scalar(0)), [-1])
    moved = tape.Gather(source, taken, axis=0)
    covered = tape.Reshape(covered, [rows, *[1] * (source.rank - 1)])
    return tape.Where(covered, moved, tape.scalar(0, source.dtype) if unused is None else unused)
