"""Rows and elements that are moved to the places of indices, sorted, or put into buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from popdist_onnx.errors import ValueRangeError
from popdist_onnx.lowering.registry import Operation, lowering
from popdist_onnx.lowering.shapes import ir_int32

if TYPE_CHECKING:
    from popdist_onnx.graph.tensor import Tensor


_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_REDUCTIONS = {"sum": "add", "max": "max", "min": "min", "mul": "mul", "none": "none"}


@lowering("EmbeddingGather")
def embedding_gather(op: Operation) -> Tensor:
    """The rows of a table: the custom operator of published BERT programs."""
    table, indices = op.inputs
    return op.tape.Gather(table, op.tape.Cast(indices, to=ir.DataType.INT64), axis=0)


@lowering("GroupedGather")
def grouped_gather(op: Operation) -> Tensor:
    """A gather in each group, the first dimension of tensor and indices; axes count with it."""
    tape = op.tape
    x, indices = op.inputs
    axis = _axis(op, x.rank, "axis", 0)
    if op.number("group_size", 1) == 1:
        return tape.Gather(x, indices, axis=axis)
    groups, length = x.shape[0], x.shape[axis]
    _require_groups(op, groups, indices.shape[0], axis)
    # Each group's rows follow those of the group before it; a place beyond them stops the step.
    order = [0, axis, *(one for one in range(1, x.rank) if one != axis)]
    rows = tape.Transpose(x, perm=order)
    rows = tape.Reshape(rows, [groups * length, *(x.shape[one] for one in order[2:])])
    indices = tape.Cast(indices, to=ir.DataType.INT64)
    first = np.arange(groups).reshape(-1, *[1] * (indices.rank - 1)) * length
    inside = tape.And(indices > -length - 1, indices < length)
    places = tape.Mod(indices, length) + tape.constant(first)
    taken = tape.Gather(rows, tape.Where(inside, places, tape.scalar(groups * length)), axis=0)
    between = range(indices.rank, indices.rank + axis - 1)
    moved = [0, *between, *range(1, indices.rank), *range(between.stop, taken.rank)]
    return tape.Transpose(taken, perm=moved)


def _axis(op: Operation, rank: int, name: str, default: int) -> int:
    axis = op.number(name, default)
    if not -rank <= axis < rank:
        raise ValueRangeError(
            "PD510",
            f"{op.node.op_type}Op::setup axis = {axis} is outside the acceptable range "
            f"[{-rank}, {rank - 1}]",
        )
    return axis % rank


def _require_groups(op: Operation, groups: int, indices: int, axis: int) -> None:
    wanted = op.number("group_size", 1)
    if {groups, indices} != {wanted}:
        raise op.misfit(
            "takes a tensor and indices whose first dimension is the number of groups",
            value={"tensor": groups, "indices": indices},
            accepted=str(wanted),
        )
    if axis == 0:
        raise op.misfit("takes an axis behind that of the groups", value=axis)


@lowering("ScatterReduce")
def scatter_reduce(op: Operation) -> Tensor:
    """Combines the values of each index along the axis.

    An index without a value gets the third input's element; without one zero, and one for products.
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
    axis = _axis(op, values.rank, "axis", -1)
    if (size := op.number("axis_size", 0)) < 1:
        raise ValueRangeError(
            "PD510", f"ScatterReduceOp axis_size = {size} is not valid: must be > 0"
        )
    values, indices = _paired(op, values, indices, axis)
    shape = list(values.shape)
    shape[axis] = size
    name = op.text("reduction", "sum").lower()
    if name not in _REDUCTIONS:
        raise op.misfit("has no such reduction", value=name, accepted=", ".join(_REDUCTIONS))

    def scatter(base: Tensor, updates: Tensor, how: str) -> Tensor:
        return tape.ScatterElements(base, indices, updates, axis=axis, reduction=how)

    if start is None and name in ("max", "min"):
        # Zero is no neutral element of a maximum.
        info = np.finfo if values.dtype.is_floating_point() else np.iinfo
        ends = info(values.dtype.numpy())
        end = np.asarray(ends.min if name == "max" else ends.max).item()
        lowest = _filled(op, shape, end, values.dtype)
        zeros, ones = (
            tape.constant(np.full(one, number, np.int64))
            for one, number in ((shape, 0), (values.shape, 1))
        )
        covered = tape.Cast(scatter(zeros, ones, "none"), to=ir.DataType.BOOL)
        extremes = scatter(lowest, values, _REDUCTIONS[name])
        result = tape.Where(covered, extremes, tape.scalar(0, values.dtype))
    else:
        neutral = int(name == "mul")
        start = _filled(op, shape, neutral, values.dtype) if start is None else start
        result = scatter(start, values, _REDUCTIONS[name])
    return tape.Cast(result, to=dtype) if dtype in _HALF else result


def _paired(op: Operation, values: Tensor, indices: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Values and indices of one shape.

    Indices of one dimension lie along the axis, and missing dimensions are ones. Indices are then
    repeated over the values, or with ``enable_index_broadcast=0`` the values are those that have
    an index, as in torch.
    """
    tape = op.tape
    grouped = op.number("group_size", 1) > 1
    repeats = bool(op.number("enable_index_broadcast", 1))
    if indices.rank > values.rank:
        raise ValueRangeError(
            "PD510",
            f"Invalid rank for indices input. Indices rank {indices.rank} must be <= data input "
            f"rank {values.rank}.",
        )
    indices = tape.Cast(indices, to=ir.DataType.INT64)
    if grouped:
        _require_groups(op, values.shape[0], indices.shape[0], axis)
    shape = list(indices.shape)
    if len(shape) == 1 + grouped:
        shape[grouped:grouped] = [1] * (axis - grouped)
    shape += [1] * (values.rank - len(shape))
    spread = [place for place, one in enumerate(shape) if one != values.shape[place]]
    if any(shape[place] > values.shape[place] for place in spread):
        raise ValueRangeError(
            "PD510",
            f"Failed to expand 'indices' shape {list(indices.shape)} to match 'src' shape "
            f"{list(values.shape)} using reduction axis = {axis}.",
        )
    others = [one for place, one in enumerate(shape) if place != axis and place >= grouped]
    if spread and repeats and (shape[axis] != values.shape[axis] or set(others) - {1}):
        # An index is repeated over all other dimensions or over none.
        raise ValueRangeError(
            "PD510", "Partial broadcasting of indices is not currently supported."
        )
    if tuple(shape) != indices.shape:
        indices = tape.Reshape(indices, shape)
    if repeats:
        return values, tape.Expand(indices, list(values.shape)) if spread else indices
    if spread:
        ends = [shape[place] for place in spread]
        values = tape.Slice(values, [0] * len(spread), ends, spread)
    return values, indices


def _filled(op: Operation, shape: list[int], number: float, dtype: ir.DataType) -> Tensor:
    content = ir.Tensor(np.asarray([number]).astype(dtype.numpy()))
    return op.tape.ConstantOfShape(op.tape.ints(*shape), value=content)


@lowering("Sort")
def sort(op: Operation) -> tuple[Tensor, Tensor]:
    """The elements along an axis in order, and their places; equal ones keep their order."""
    (x,) = op.inputs
    axis = _axis(op, x.rank, "axis", -1)
    largest = int(op.number("descending", 0) != 0)
    length = op.tape.ints(x.shape[axis])
    values, places = op.tape.many("TopK", 2, x, length, axis=axis, largest=largest, sorted=1)
    return values, op.tape.Cast(places, to=ir_int32())


@lowering("Bucketize")
def bucketize(op: Operation) -> Tensor:
    """The number of boundaries before each element; one that is equal counts with ``right``.

    It is found by halving, as in torch, so that boundaries out of order give torch's result too.
    """
    tape = op.tape
    x, boundaries = op.inputs
    if boundaries.rank != 1 or boundaries.dtype != x.dtype:
        raise op.misfit(
            "takes boundaries of one dimension and of the type of the input",
            value=f"{boundaries.dtype.name} {list(boundaries.lengths)}",
            accepted=x.dtype.name,
        )
    (length,) = boundaries.shape
    low = _filled(op, list(x.shape), 0, ir.DataType.INT64)
    high = _filled(op, list(x.shape), length, ir.DataType.INT64)
    for _ in range(length.bit_length()):
        middle = tape.Div(low + high, 2)
        boundary = tape.Gather(boundaries, tape.Min(middle, tape.scalar(length - 1)), axis=0)
        beyond = boundary > x if op.number("right", 0) else boundary >= x
        open_, before = low < high, tape.Not(beyond)
        low = tape.Where(tape.And(open_, before), middle + 1, low)
        high = tape.Where(tape.And(open_, beyond), middle, high)
    return tape.Cast(low, to=ir_int32())


@lowering("SequenceSlice")
def sequence_slice(op: Operation) -> Tensor:
    """Copies run i, ``source[from_i : from_i + n_i]``, to ``destination[to_i : to_i + n_i]``.

    Rows that no run covers are those of the destination, or with ``zeroUnused`` zero. Where runs
    overlap in the destination, the last one counts.
    """
    source, destination, lengths, begins, ends = op.inputs
    unused = None if op.number("zeroUnused", 0) else destination
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
