"""Rows and elements that are moved to where indices say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from popdist_onnx.lowering.registry import Operation, lowering

if TYPE_CHECKING:
    from popdist_onnx.graph.tensor import Tensor

_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_REDUCTIONS = {"Sum": "add", "Max": "max", "Min": "min"}


@lowering("ScatterReduce")
def scatter_reduce(op: Operation) -> Tensor:
    """Each value goes to its index along the axis; those that meet are combined.

    Where nothing arrives stands the third input, or zero.
    """
    tape = op.tape
    values, indices = op.inputs[:2]
    start = op.optional(2)
    dtype = values.dtype
    if dtype in _HALF:
        # ONNX Runtime's kernel combines no half-precision numbers; sums are better for it, too.
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

    if start is None:
        start = _filled(op, shape, 0, values.dtype)
        if name != "Sum":
            # Zero is no neutral element of a maximum: begin with values that arrive.
            start = scatter(start, values, "none")
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
    tape = op.tape
    source, destination = op.inputs[:2]
    lengths, begins, ends = (
        tape.Reshape(tape.Cast(one, to=ir.DataType.INT64), [1, -1]) for one in op.inputs[2:]
    )
    rows = destination.shape[0]
    runs = lengths.shape[1]
    position = tape.constant(np.arange(rows).reshape(-1, 1)) - ends
    # One row per row of the destination, one column per run.
    covers = tape.And(position > -1, position < lengths)
    order = tape.Where(covers, tape.constant(np.arange(runs).reshape(1, -1)), tape.scalar(-1))
    last = tape.ReduceMax(order, [1], keepdims=1)
    covered = last > -1
    taken = tape.GatherElements(
        position + begins, tape.Where(covered, last, tape.scalar(0)), axis=1
    )
    taken = tape.Reshape(tape.Where(covered, taken, tape.scalar(0)), [-1])
    moved = tape.Gather(source, taken, axis=0)
    covered = tape.Reshape(covered, [rows, *[1] * (destination.rank - 1)])
    unused = tape.scalar(0, source.dtype) if op.number("zeroUnused", 1) else destination
    return tape.Where(covered, moved, unused)
