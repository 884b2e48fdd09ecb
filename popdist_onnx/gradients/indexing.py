"""Gathering and scattering: the one is the gradient of the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from popdist_onnx.gradients.registry import At, gradient
from popdist_onnx.graph import names, shape_ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from popdist_onnx.graph.tensor import Tensor

_INT64 = 7
_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def wide(tensor: Tensor) -> Tensor:
    """A half-precision tensor in float32, as ONNX Runtime's kernels only add those up.

    Args:
        tensor: The tensor.

    Returns:
        The same in a type that scattering can add.
    """
    return tensor.tape.Cast(tensor, to=wide_type(tensor)) if tensor.dtype in _HALF else tensor


def wide_type(tensor: Tensor) -> ir.DataType:
    """The type that `wide` gives.

    Args:
        tensor: The tensor.

    Returns:
        Its type, or float32 for half precision.
    """
    return ir.DataType.FLOAT if tensor.dtype in _HALF else tensor.dtype


def narrow(tensor: Tensor, like: Tensor) -> Tensor:
    """Undoes `wide`.

    Args:
        tensor: A tensor in the type that `wide` gave.
        like: A tensor of the type that is wanted.

    Returns:
        The tensor in that type.
    """
    return tensor.tape.Cast(tensor, to=like.dtype.value) if like.dtype in _HALF else tensor


def scattered(at: At, indices: Tensor, axis: int) -> Tensor:
    """The node's gradient, added up where indices of one axis say."""
    zeros = shape_ops.zeros(at.x, wide_type(at.x))
    added = at.tape.ScatterElements(zeros, indices, wide(at.g), axis=axis, reduction="add")
    return narrow(added, at.x)


@gradient("Gather", inputs=(0,))
def _gather(at: At) -> Tensor:
    """Rows of the gradient are added to where they were taken from."""
    tape, axis = at.tape, int(at.get("axis", 0)) % at.x.rank
    indices, g = at.input(1), at.g
    if (row := at.node.metadata_props.get(names.PADDING)) is not None:
        padding = tape.Equal(indices, tape.scalar(int(row), indices.dtype))
        g = tape.Where(tape.Unsqueeze(padding, [-1]), tape.scalar(0.0, g.dtype), g)
    if (only := _only_index(indices)) is not None and at.x.static:
        return _placed(at, only, axis)
    # Axes that were indexed move to the front, as one list of rows.
    count = indices.rank
    if axis:
        order = [*range(axis, axis + count), *range(axis), *range(axis + count, g.rank)]
        g = tape.Transpose(g, perm=order)
    rest = [one for place, one in enumerate(at.x.lengths) if place != axis]
    if count != 1:
        g = tape.Reshape(g, _lengths(at, [-1, *rest], axis))
    rows = tape.Reshape(indices, [-1, 1])
    if rows.dtype.value != _INT64:
        rows = tape.Cast(rows, to=_INT64)
    total = narrow(tape.ScatterND(_front_zeros(at, axis), rows, wide(g), reduction="add"), at.x)
    if axis == 0:
        return total
    return tape.Transpose(total, perm=[*range(1, axis + 1), 0, *range(axis + 1, at.x.rank)])


def _only_index(indices: Tensor) -> int | None:
    known = indices.constant
    return int(known.item()) if known is not None and known.size == 1 else None


def _placed(at: At, index: int, axis: int) -> Tensor:
    """One row: zeros around it."""
    tape, rank, length = at.tape, at.x.rank, at.x.shape[axis]
    index %= length
    row = tape.Reshape(at.g, [1 if one == axis else size for one, size in enumerate(at.x.shape)])
    before = [index if one == axis else 0 for one in range(rank)]
    after = [length - 1 - index if one == axis else 0 for one in range(rank)]
    return tape.Pad(row, [*before, *after])


def _lengths(at: At, wanted: list[int | str | None], axis: int) -> Tensor:
    """A shape of which some lengths are read at run time."""
    if all(isinstance(one, int) for one in wanted):
        return at.tape.ints(*(one for one in wanted if isinstance(one, int)))
    shape = at.tape.Shape(at.x)
    rest = [one for one in range(at.x.rank) if one != axis]
    return at.tape.Concat(at.tape.ints(-1), at.tape.Gather(shape, rest), axis=0)


def _front_zeros(at: At, axis: int) -> Tensor:
    """Zeros of the input's shape with one axis moved to the front."""
    order = [axis, *(one for one in range(at.x.rank) if one != axis)]
    if at.x.static:
        shape = at.tape.ints(*(at.x.shape[one] for one in order))
    else:
        shape = at.tape.Gather(at.tape.Shape(at.x), order)
    zero = np.zeros(1, wide_type(at.x).numpy())
    return at.tape.ConstantOfShape(shape, value=ir.Tensor(zero))


@gradient("GatherElements", inputs=(0,))
def _gather_elements(at: At) -> Tensor:
    return scattered(at, at.input(1), at.get("axis", 0))


@gradient("GatherND", inputs=(0,))
def _gather_nd(at: At) -> Tensor:
    """Leading batch axes become indices of their own."""
    tape, indices = at.tape, at.input(1)
    batches = at.get("batch_dims", 0)
    if batches:
        if not indices.static:
            raise at.refused("batch_dims with indices of unknown shape")
        lead = np.indices(indices.shape[:-1])[:batches]
        grid = tape.constant(np.moveaxis(lead, 0, -1).astype(np.int64))
        indices = tape.Concat(grid, indices, axis=-1)
    zeros = shape_ops.zeros(at.x, wide_type(at.x))
    return narrow(tape.ScatterND(zeros, indices, wide(at.g), reduction="add"), at.x)


@gradient("ScatterElements", inputs=(0, 2))
def _scatter_elements(at: At) -> list[Tensor | None]:
    tape, indices, axis = at.tape, at.input(1), at.get("axis", 0)
    reduction = at.get("reduction", "none")
    if reduction in ("max", "min"):
        return _shared_by_extremes(
            at,
            lambda one: tape.GatherElements(one, indices, axis=axis),
            lambda base, ones: tape.ScatterElements(
                base, indices, ones, axis=axis, reduction="add"
            ),
        )
    if reduction == "mul":
        return _products(at, indices, axis)
    taken = tape.GatherElements(at.g, indices, axis=axis)
    if reduction == "add":
        return [at.g, None, taken]
    zeros = shape_ops.zeros(at.input(2))
    return [tape.ScatterElements(at.g, indices, zeros, axis=axis), None, taken]


def _products(at: At, indices: Tensor, axis: int) -> list[Tensor | None]:
    """The product of the other factors of a place, as in torch's ``scatter_reduce``.

    A factor of zero is replaced by one, so that nothing is divided by zero; where it is the only
    one among the updates of a place, the product is made again without it.
    """
    tape, x, updates = at.tape, at.x, at.input(2)

    def product(base: Tensor, factors: Tensor) -> Tensor:
        return tape.ScatterElements(base, indices, factors, axis=axis, reduction="mul")

    def without_zeros(one: Tensor, zeros: Tensor) -> Tensor:
        return tape.Where(zeros, tape.scalar(1, one.dtype), one)

    base = without_zeros(x, tape.Equal(x, 0.0))
    to_x = at.g * product(base, updates) / base
    zeros = tape.Equal(updates, 0.0)
    counts = tape.ScatterElements(
        shape_ops.zeros(x), indices, tape.Cast(zeros, to=x.dtype), axis=axis, reduction="add"
    )
    only = tape.And(zeros, tape.Equal(tape.GatherElements(counts, indices, axis=axis), 1.0))
    others = at.g * product(x, without_zeros(updates, only))
    usual = tape.GatherElements(at.g * at.y, indices, axis=axis) / without_zeros(updates, zeros)
    to_updates = tape.Where(only, tape.GatherElements(others, indices, axis=axis), usual)
    return [to_x, None, to_updates]


@gradient("ScatterND", inputs=(0, 2))
def _scatter_nd(at: At) -> list[Tensor | None]:
    tape, indices = at.tape, at.input(1)
    reduction = at.get("reduction", "none")
    if reduction in ("max", "min"):
        return _shared_by_extremes(
            at,
            lambda one: tape.GatherND(one, indices),
            lambda base, ones: tape.ScatterND(base, indices, ones, reduction="add"),
        )
    if reduction not in ("none", "add"):
        raise at.refused(f"reduction {reduction!r}", "use reduction none, add, max or min")
    taken = tape.GatherND(at.g, indices)
    if reduction == "add":
        return [at.g, None, taken]
    return [tape.ScatterND(at.g, indices, shape_ops.zeros(at.input(2))), None, taken]


def _shared_by_extremes(
    at: At, gather: Callable[[Tensor], Tensor], add: Callable[[Tensor, Tensor], Tensor]
) -> list[Tensor | None]:
    """Equal extremes of a place share its gradient, as in torch's ``scatter_reduce``."""
    tape, y, g = at.tape, at.output(0), wide(at.g)
    base = tape.Cast(tape.Equal(at.x, y), to=g.dtype)
    updates = tape.Cast(tape.Equal(at.input(2), gather(y)), to=g.dtype)
    share = g / tape.Max(add(base, updates), 1.0)
    return [narrow(base * share, at.x), None, narrow(updates * gather(share), at.x)]


@gradient("TopK", inputs=(0,))
def _top_k(at: At) -> Tensor:
    return scattered(at, at.output(1), at.get("axis", -1))


@gradient("Compress", inputs=(0,))
def _compress(at: At) -> Tensor:
    """Compressing all positions says where the elements came from."""
    tape = at.tape
    shape = tape.Shape(at.x)
    count = tape.ReduceProd(shape, keepdims=0)
    zero, one = np.asarray(0, np.int64), np.asarray(1, np.int64)
    positions = tape.Reshape(tape.Range(zero, count, one), shape, allowzero=1)
    axis = at.node.attributes.get("axis")
    chosen = tape.Compress(positions, at.input(1), axis=None if axis is None else axis.value)
    flat = tape.Reshape(shape_ops.zeros(at.x), [-1])
    rows = tape.Reshape(chosen, [-1])
    filled = tape.ScatterElements(flat, rows, tape.Reshape(at.g, [-1]), axis=0)
    return tape.Reshape(filled, shape, allowzero=1)


@gradient("OneHot", inputs=(2,))
def _one_hot(at: At) -> list[Tensor | None]:
    """The values are [off, on]; every element of the gradient belongs to one of them."""
    tape, axis = at.tape, at.get("axis", -1)
    values = tape.constant(np.asarray([0, 1], at.input(2).dtype.numpy()))
    hot = tape.OneHot(at.x, at.input(1), values, axis=axis)
    on = tape.ReduceSum(hot * at.g, keepdims=0)
    total = tape.ReduceSum(at.g, keepdims=0)
    both = [tape.Unsqueeze(one, [0]) for one in (total - on, on)]
    return [None, None, tape.Concat(*both, axis=0)]
