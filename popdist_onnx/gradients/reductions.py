"""Reductions over axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.gradients.registry import At, gradient
from popdist_onnx.graph import shape_ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from popdist_onnx.graph.tensor import Tensor


_BOOL = 9


def axes_of(at: At) -> list[int] | None:
    """The axes that a node reduces over.

    Args:
        at: The node; axes are its second input.

    Returns:
        The axes, not negative; all where none are given, none for a reduction that does nothing.
    """
    rank = at.x.rank
    given = at.optional(1)
    if given is None or given.dims == (0,):
        return None if at.get("noop_with_empty_axes", 0) else list(range(rank))
    return [int(axis) % rank for axis in at.known(1)]


def kept(at: At, reduced: Tensor, axes: list[int]) -> Tensor:
    """A reduced tensor with the reduced axes as length 1.

    Args:
        at: The node.
        reduced: Its output, or the gradient of that.
        axes: The axes.

    Returns:
        The tensor, which broadcasts against the input.
    """
    if at.get("keepdims", 1) or not axes:
        return reduced
    return at.tape.Unsqueeze(reduced, axes)


def spread(at: At, reduced: Tensor) -> Tensor:
    """Repeats a tensor along the reduced axes."""
    if at.x.static and 0 in at.x.shape:
        # ONNX Runtime folds the expansion of a constant to no elements into one element.
        return shape_ops.zeros(at.x)
    return at.tape.Expand(reduced, shape_ops.lengths(at.x))


@gradient("ReduceSum", inputs=(0,))
def _sum(at: At) -> Tensor:
    axes = axes_of(at)
    return at.g if axes is None else spread(at, kept(at, at.g, axes))


@gradient("ReduceMean", inputs=(0,))
def _mean(at: At) -> Tensor:
    axes = axes_of(at)
    if axes is None:
        return at.g
    return spread(at, kept(at, at.g, axes) / shape_ops.count(at.x, axes))


@gradient("ReduceSumSquare", inputs=(0,))
def _sum_square(at: At) -> Tensor:
    return _scaled(at, lambda g, _: 2 * at.x * g)


@gradient("ReduceL1", inputs=(0,))
def _l1(at: At) -> Tensor:
    return _scaled(at, lambda g, _: at.tape.Sign(at.x) * g)


@gradient("ReduceL2", inputs=(0,))
def _l2(at: At) -> Tensor:
    """X / y, and zero at the origin."""

    def slope(g: Tensor, y: Tensor) -> Tensor:
        origin = at.tape.Equal(y, 0.0)
        one = at.tape.scalar(1, y.dtype)
        return at.x * (g / at.tape.Where(origin, one, y))

    return _scaled(at, slope)


@gradient("ReduceLogSum", inputs=(0,))
def _log_sum(at: At) -> Tensor:
    return _scaled(at, lambda g, y: spread(at, g / at.tape.Exp(y)))


@gradient("ReduceLogSumExp", inputs=(0,))
def _log_sum_exp(at: At) -> Tensor:
    return _scaled(at, lambda g, y: at.tape.Exp(at.x - y) * g)


@gradient("ReduceMax", "ReduceMin", inputs=(0,))
def _extreme(at: At) -> Tensor:
    """Equal extremes share the gradient, as in torch's amax."""

    def slope(g: Tensor, y: Tensor) -> Tensor:
        hit = at.tape.Cast(at.tape.Equal(at.x, y), to=at.x.dtype.value)
        return hit * (g / at.tape.ReduceSum(hit, axes_of(at), keepdims=1))

    return _scaled(at, slope)


@gradient("ReduceProd", inputs=(0,))
def _prod(at: At) -> Tensor:
    """The product of all others: of those before (running) and those after (running backwards)."""
    axes = axes_of(at)
    if axes is None:
        return at.g
    tape, x = at.tape, at.x
    rank = x.rank
    others = [axis for axis in range(rank) if axis not in axes]
    order = [*others, *axes]
    flat = tape.Transpose(x, perm=order)
    if len(axes) != 1:
        lengths = shape_ops.lengths(flat)
        flat = tape.Reshape(flat, [*[0] * len(others), -1])
    # The matrix of all elements, repeated, with ones on its diagonal: rows multiply the others.
    last = len(others)
    count = tape.Gather(tape.Shape(flat), [last])
    square = tape.Concat(count, count, axis=0)
    diagonal = tape.Cast(tape.EyeLike(tape.Expand(tape.scalar(0.0), square)), to=_BOOL)
    repeated = tape.Where(diagonal, tape.scalar(1, x.dtype), tape.Unsqueeze(flat, [last]))
    product = tape.ReduceProd(repeated, [last + 1], keepdims=0)
    if len(axes) != 1:
        product = tape.Reshape(product, lengths)
    back = sorted(range(rank), key=order.__getitem__)
    return tape.Transpose(product, perm=back) * kept(at, at.g, axes)


def _scaled(at: At, slope: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """A slope of gradient and output, both with the reduced axes kept."""
    axes = axes_of(at)
    if axes is None:
        raise at.refused("without axes it reduces nothing", "leave the node out")
    return slope(kept(at, at.g, axes), kept(at, at.y, axes))


@gradient("CumSum", inputs=(0,))
def _cumulative_sum(at: At) -> Tensor:
    """Summed from the other end."""
    return at.tape.CumSum(
        at.g, at.input(1), exclusive=at.get("exclusive", 0), reverse=1 - at.get("reverse", 0)
    )
