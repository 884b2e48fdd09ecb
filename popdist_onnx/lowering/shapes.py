"""Elements in another order or number: reshape, reverse, subsample, and the like."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from popdist_onnx.lowering.registry import Operation, lowering

if TYPE_CHECKING:
    from popdist_onnx.graph.tensor import Tensor

_TO_THE_END = np.iinfo(np.int64).max
_TO_THE_START = np.iinfo(np.int64).min


@lowering("Reshape")
def reshape(op: Operation) -> Tensor:
    """The shape is an attribute here; -1 stands for what is left, 0 for the dimension as it is."""
    (x,) = op.inputs
    return op.tape.Reshape(x, op.numbers("shape"))


@lowering("Reverse")
def reverse(op: Operation) -> Tensor:
    """A slice with steps of -1."""
    (x,) = op.inputs
    axes = axes_of(op, "dimensions", x.rank)
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
    """Zeros, which are as good as any content for ``InitType.NoInit``."""
    import onnx_ir as ir

    dtype = ir.DataType(op.number("data_type", int(ir.DataType.FLOAT)))
    content = ir.Tensor(np.zeros(1, dtype.numpy()))
    return op.tape.ConstantOfShape(op.tape.ints(*op.numbers("shape")), value=content)


@lowering("ReduceMedian")
def reduce_median(op: Operation) -> tuple[Tensor, Tensor]:
    """The lower median along axes, and where it stands among the elements that it is of."""
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
    """The number of the type that PopART gives to indices."""
    from onnx import TensorProto

    return int(TensorProto.INT32)


def axes_of(op: Operation, name: str, rank: int, default: range | None = None) -> list[int]:
    """An attribute that names dimensions, counted from the front and each once.

    Args:
        op: The operator.
        name: The attribute.
        rank: The number of dimensions.
        default: The dimensions where the attribute is missing; None if it must be there.

    Returns:
        The dimensions in ascending order.

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
