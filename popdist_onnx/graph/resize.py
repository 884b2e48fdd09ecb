"""Writes `Resize` as gathers or matrix products where the kernel differs from the text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from popdist_onnx.graph import resampling
from popdist_onnx.graph.conform import form
from popdist_onnx.graph.values import constant, operand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_onnx.graph.tensor import Tape, Tensor
    from popdist_onnx.graph.values import Array


@form("Resize")
def resize(tape: Tape, node: ir.Node) -> Sequence[Tensor] | None:
    """Gathers or matrix products, where the kernel differs from the text or lacks a rank."""
    x, y = tape.wrap(node.inputs[0]), tape.wrap(node.outputs[0])  # type: ignore[arg-type]
    axes = axes_of_resize(node, x.shape) if x.static else None
    if axes is None:
        if node.attributes.get_string("nearest_mode", "") == "pytorch":
            # The kernel's nearest rounding; its own differs by an element at some scales.
            node.attributes["nearest_mode"] = ir.AttrString("nearest_mode", "floor")
        return None
    attributes = {name: one.value for name, one in node.attributes.items()}
    sampling = resampling.settings(attributes)
    changed = {number: axis for number, axis in enumerate(axes) if not axis.untouched}
    if _has_kernel(x, sampling, changed) and all(
        resampling.kernel_agrees(sampling, axis) for axis in set(changed.values())
    ):
        y.value.shape = ir.Shape([axis.made for axis in axes])
        return None
    made, dtype = x, x.dtype
    outside = np.zeros([1] * x.rank, bool)
    products = sampling.mode != "nearest" or sampling.coordinates == "tf_crop_and_resize"
    if products and not dtype.is_floating_point():
        made = tape.Cast(made, to=ir.DataType.FLOAT)
    for number, axis in changed.items():
        matrix, beyond = resampling.weights(sampling, axis)
        along = [1] * x.rank
        along[number] = axis.made
        outside = outside | beyond.reshape(along)
        if products:
            made = _times(made, matrix, number)
        else:
            made = tape.Gather(made, np.argmax(matrix, axis=1), axis=number)
    if outside.any():
        value = tape.scalar(attributes.get("extrapolation_value", 0.0), made.dtype)
        made = tape.Where(tape.constant(outside), value, made)
    return [tape.Cast(made, to=dtype) if made.dtype != dtype else tape.Identity(made)]


def _times(x: Tensor, matrix: Array, axis: int) -> Tensor:
    """Multiplies along one axis."""
    tape, last = x.tape, x.rank - 1
    order = [*(one for one in range(x.rank) if one != axis), axis]
    moved = x if axis == last else tape.Transpose(x, perm=order)
    product = moved @ tape.constant(np.ascontiguousarray(matrix.T).astype(x.dtype.numpy()))
    back = [int(one) for one in np.argsort(order)]
    return product if axis == last else tape.Transpose(product, perm=back)


_PLANES = (2, 3)


def _has_kernel(
    x: Tensor, sampling: resampling.Sampling, changed: dict[int, resampling.Axis]
) -> bool:
    """Whether ONNX Runtime's kernel supports this type and rank."""
    if x.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16) or sampling.nearest == "pytorch":
        return False
    if sampling.coordinates == "tf_crop_and_resize":
        return False
    if sampling.mode == "nearest":
        return True
    return x.rank == 4 and all(axis in _PLANES for axis in changed)  # noqa: PLR2004 - images


def axes_of_resize(node: ir.Node, lengths: Sequence[int]) -> list[resampling.Axis] | None:
    """The axes of a Resize of opset 18 or newer; None where scales or sizes are not constant."""
    rank = len(lengths)
    roi, scales, sizes = (_numbers(node, index) for index in (1, 2, 3))
    named = node.attributes.get("axes")
    chosen = list(range(rank)) if named is None else [int(one) % rank for one in named.as_ints()]
    crops = node.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    regions = [(0.0, 1.0)] * rank
    if crops:
        if roi is None:
            return None
        for place, axis in enumerate(chosen):
            regions[axis] = float(roi[place]), float(roi[place + len(chosen)])
    if scales is not None and scales.size:
        factor = dict(zip(chosen, [float(one) for one in scales], strict=True))
        made = resampling.made_lengths(lengths, [factor.get(axis, 1.0) for axis in range(rank)])
    elif sizes is not None and sizes.size:
        wanted = dict(zip(chosen, [int(one) for one in sizes], strict=True))
        factor = {axis: wanted[axis] / lengths[axis] for axis in chosen}
        policy = node.attributes.get_string("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            one = (min if policy == "not_larger" else max)(factor.values())
            factor = dict.fromkeys(chosen, one)
            wanted = {axis: int(one * lengths[axis] + 0.5) for axis in chosen}
        made = [wanted.get(axis, lengths[axis]) for axis in range(rank)]
    else:
        return None
    return [
        resampling.Axis(lengths[axis], made[axis], factor.get(axis, 1.0), regions[axis])
        for axis in range(rank)
    ]


def _numbers(node: ir.Node, index: int) -> Array | None:
    value = operand(node, index)
    if value is None:
        return None
    found = constant(value)
    if found is None and value.const_value is not None and not value.is_graph_input():
        # Scales are no weights, although they are floating-point numbers.
        found = np.asarray(value.const_value.numpy())
    return found
