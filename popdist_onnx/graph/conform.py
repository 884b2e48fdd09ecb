"""Rewrites nodes into forms that both ONNX's text and ONNX Runtime's kernels accept.

PopART's builder takes operands that ONNX's text does not allow (32-bit shapes, float16 scales). In
some places ONNX Runtime's kernels differ from the text, or do not exist. Such nodes are replaced by
equivalent ones; names of values stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from popdist_onnx.graph import resampling, shape_ops
from popdist_onnx.graph.attention import attention
from popdist_onnx.graph.compat import captured, replace_inside, replace_uses, subgraphs
from popdist_onnx.graph.inference import (
    RECURRENT,
    annotate,
    hidden_size,
    keeps_axis,
    operand_type,
    scan_axis,
)
from popdist_onnx.graph.names import ORIGIN
from popdist_onnx.graph.tensor import Tape
from popdist_onnx.graph.values import constant, dims

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from popdist_onnx.graph.tensor import Tensor
    from popdist_onnx.graph.values import Array

_FORMS: dict[str, Callable[[Tape, ir.Node], Sequence[Tensor] | None]] = {}
"""By operator: what takes a node's place; None where the node may stay."""


def _form(*op_types: str) -> Callable[..., Callable[[Tape, ir.Node], Sequence[Tensor] | None]]:
    def register(
        function: Callable[[Tape, ir.Node], Sequence[Tensor] | None],
    ) -> Callable[[Tape, ir.Node], Sequence[Tensor] | None]:
        _FORMS.update(dict.fromkeys(op_types, function))
        return function

    return register


def conform(model: ir.Model) -> None:
    """Rewrites a model in the working opset, with shapes, in place."""
    # Kernels that lack a type are replaced last: readers of indices may then have 32-bit operands.
    _narrow_indices(model.graph)
    _conform(model.graph, model.graph.opset_imports[""])


def _conform(graph: ir.Graph, opset: int) -> None:
    tape = Tape(graph, opset=opset)
    for node in list(graph):
        for inner in subgraphs(node):
            _conform(inner, opset)
        if node.domain:
            continue
        _cast_shapes(tape, node)
        form = _FORMS.get(node.op_type)
        if form is None or any(value is not None and value.dtype is None for value in node.inputs):
            continue
        metadata = {ORIGIN: f"{node.op_type}-{opset}", **node.metadata_props}
        with tape.at(node, f"{node.outputs[0].name}/", metadata):
            made = form(tape, node)
            if made is not None:
                tape.substitute(node, made)


# Operands of another type.


def _cast_shapes(tape: Tape, node: ir.Node) -> None:
    """Shapes are 64-bit numbers, scales are single precision."""
    changed = False
    for index, value in enumerate(node.inputs):
        wanted = None if value is None else operand_type(node, index, value.dtype)
        if value is not None and wanted is not None and wanted != value.dtype:
            _cast(tape, node, index, wanted)
            changed = True
    if changed:
        annotate(node, tape.opset)


def _cast(tape: Tape, node: ir.Node, index: int, dtype: ir.DataType) -> None:
    value = node.inputs[index]
    if value is None:
        return
    tensor = tape.wrap(value)
    content = tensor.constant
    with tape.at(node, f"{node.outputs[0].name}/"):
        if content is not None:
            cast = tape.constant(content.astype(dtype.numpy()))
        else:
            cast = tape.Cast(tensor, to=dtype)
    node.replace_input_with(index, cast.value)


# Missing and different kernels.


@_form("Scan")
def _scan(tape: Tape, node: ir.Node) -> Sequence[Tensor] | None:
    """Concatenates slices that keep the scanned axis, as PopART's do."""
    if not keeps_axis(node):
        return None
    body = node.attributes["body"].as_graph()
    walked = node.attributes.get_int("num_scan_inputs", 0)
    count = len(body.inputs) - walked
    inner = Tape(body, scope=f"{node.outputs[0].name}/slices/", opset=tape.opset)
    first = next(iter(body), None)
    for number, value in enumerate(list(body.inputs[count:])):
        axis = scan_axis(node, "scan_input_axes", number)
        known = list(dims(value) or ())
        axis %= len(known)
        with inner.at(first):
            whole = inner.Unsqueeze(value, inner.ints(axis))
        whole.value.type, whole.value.shape = value.type, value.shape
        replace_uses(body, value, whole.value)
        whole.value.producer().replace_input_with(0, value)  # type: ignore[union-attr]
        value.shape = ir.Shape([*known[:axis], *known[axis + 1 :]])
    settings = {name: one.value for name, one in node.attributes.items()}
    made = list(tape.many("Scan", len(node.outputs), *node.inputs, **settings))
    for number, output in enumerate(body.outputs[count:]):
        slices, stacked = dims(output), made[count + number]
        if slices is None or not all(isinstance(one, int) for one in slices):
            return None
        axis = scan_axis(node, "scan_output_axes", number) % len(slices)
        shape = [int(one or 0) for one in slices]
        shape[axis] = -1
        made[count + number] = tape.Reshape(stacked, tape.ints(*shape))
    return made


@_form("Attention")
def _attention(tape: Tape, node: ir.Node) -> Sequence[Tensor] | None:
    """The newest formula, which older texts, functions and kernels differ from."""
    return attention(tape, node)


@_form("Resize")
def _resize(tape: Tape, node: ir.Node) -> Sequence[Tensor] | None:
    """Gathers or matrix products, where the kernel differs from the text or lacks a rank."""
    x, y = tape.wrap(node.inputs[0]), tape.wrap(node.outputs[0])  # type: ignore[arg-type]
    if not x.static:
        return None
    axes = axes_of_resize(node, x.shape)
    if axes is None:
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
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        return None
    found = constant(value)
    if found is None and value.const_value is not None and not value.is_graph_input():
        # Scales are no weights, although they are floating-point numbers.
        found = np.asarray(value.const_value.numpy())
    return found


@_form(*RECURRENT)
def _recurrent(tape: Tape, node: ir.Node) -> None:
    """Sets the length of the state, which the kernels require."""
    del tape
    if (length := hidden_size(node)) is not None:
        node.attributes["hidden_size"] = ir.AttrInt64("hidden_size", length)


@_form("OneHot")
def _one_hot(tape: Tape, node: ir.Node) -> Sequence[Tensor] | None:
    """A comparison, where the kernel does not support the combination of types."""
    indices, depth, values = (tape.wrap(value) for value in node.inputs if value is not None)
    whole = indices.dtype is depth.dtype is ir.DataType.INT64
    if whole and values.dtype in (ir.DataType.INT64, ir.DataType.FLOAT):
        return None
    count = depth.constant
    axis = node.attributes.get_int("axis", -1)
    index = tape.Cast(indices, to=ir.DataType.INT64)
    if count is None:
        depth = tape.Cast(depth, to=ir.DataType.INT64)
        single = tape.Cast(values, to=ir.DataType.FLOAT)
        return [tape.Cast(tape.OneHot(index, depth, single, axis=axis), to=values.dtype)]
    length = int(count.reshape(-1)[0])
    index = tape.Where(index < 0, index + length, index)
    rank = indices.rank + 1
    along = [1] * rank
    along[axis % rank] = length
    hits = tape.Equal(
        tape.Unsqueeze(index, [axis]), tape.constant(np.arange(length).reshape(along))
    )
    off, on = (tape.Gather(values, np.asarray(number), axis=0) for number in (0, 1))
    return [tape.Where(hits, on, off)]


@_form("Mod")
def _mod(tape: Tape, node: ir.Node) -> Sequence[Tensor] | None:
    """The floored remainder of floating-point numbers, which PopART supports and ONNX does not."""
    a, b = (tape.wrap(value) for value in node.inputs if value is not None)
    if node.attributes.get_int("fmod", 0) or not a.dtype.is_floating_point():
        return None
    rest = tape.Mod(a, b, fmod=1)
    wrong = tape.And(tape.Not(tape.Equal(rest, 0.0)), tape.Xor(rest < 0, b < 0))
    return [tape.Where(wrong, rest + b, rest)]


@_form("LRN")
def _lrn(tape: Tape, node: ir.Node) -> Sequence[Tensor] | None:
    """Windows of even size, which reach further to the end, and ranks other than four.

    The kernel supports neither of them.
    """
    x = tape.wrap(node.inputs[0])  # type: ignore[arg-type]
    size = node.attributes.get_int("size", 1)
    if x.dims is None or not isinstance(x.dims[1], int):
        return None
    if size % 2 and x.rank == 4:  # noqa: PLR2004 - images
        return None
    alpha = node.attributes.get_float("alpha", 1e-4) / size
    beta, bias = (node.attributes.get_float(*one) for one in (("beta", 0.75), ("bias", 1.0)))
    before, after = (size - 1) // 2, size // 2
    around = [0, before, *[0] * (x.rank - 2), 0, after, *[0] * (x.rank - 2)]
    padded = tape.Pad(x * x, around)
    parts = [tape.Slice(padded, [one], [one + x.dims[1]], [1]) for one in range(size)]
    return [x / (tape.Sum(*parts) * alpha + bias) ** beta]


@_form("Slice")
def _backwards(tape: Tape, node: ir.Node) -> Sequence[Tensor] | None:
    """A slice backwards to an end behind its start is empty; the kernel takes all elements."""
    given = [None if value is None else constant(value) for value in node.inputs[1:]]
    if len(given) < 4 or any(one is None for one in (given[1], given[3])):  # noqa: PLR2004
        return None
    ends, steps = (np.asarray(one) for one in (given[1], given[3]))
    far = (steps < 0) & (ends >= np.iinfo(np.int32).max)
    if not far.any():
        return None
    # Any end that is no extreme of its type is read as ONNX's text says.
    ends = np.where(far, np.iinfo(np.int32).max - 1, ends).astype(ends.dtype)
    first, begins, _, *rest = node.inputs
    return [tape.Slice(first, begins, ends, *rest)]


@_form("MaxPool", "AveragePool", "LpPool")
def _pool(tape: Tape, node: ir.Node) -> Sequence[Tensor] | None:
    return _short_windows(tape, node) or _late_windows(tape, node)


def _short_windows(tape: Tape, node: ir.Node) -> Sequence[Tensor] | None:
    """No padding with auto_pad where windows are shorter than their steps, as of convolutions.

    The kernel takes padding below zero there, which cuts off both ends of the input.
    """
    x, y = tape.wrap(node.inputs[0]), tape.wrap(node.outputs[0])  # type: ignore[arg-type]
    settings = {name: one.value for name, one in node.attributes.items()}
    auto = settings.get("auto_pad", "NOTSET")
    if not (auto.startswith("SAME") and x.static and y.static):
        return None
    missing = _missing(settings, settings["kernel_shape"], x, y)
    if all(one >= 0 for one in missing):
        return None
    settings |= {"auto_pad": "NOTSET", "pads": _halves(missing, auto)}
    return list(tape.many(node.op_type, len(node.outputs), x, **settings))


@_form("Conv")
def _dilated(tape: Tape, node: ir.Node) -> Sequence[Tensor] | None:
    """Counted padding in place of auto_pad where windows are dilated, which the kernel refuses."""
    x, w, y = (tape.wrap(one) for one in (*node.inputs[:2], node.outputs[0]))  # type: ignore[arg-type]
    settings = {name: one.value for name, one in node.attributes.items()}
    auto = settings.get("auto_pad", "NOTSET")
    if not (auto.startswith("SAME") and x.static and w.static and y.static):
        return None
    if all(one == 1 for one in settings.get("dilations", [1])):
        return None
    missing = _missing(settings, w.shape[2:], x, y)
    settings |= {"auto_pad": "NOTSET", "pads": _halves(missing, auto)}
    return [tape.many("Conv", 1, *node.inputs, **settings)[0]]


def _missing(settings: dict[str, Any], sizes: Sequence[int], x: Tensor, y: Tensor) -> list[int]:
    """How much longer than the input all windows are together, by axis; below zero if shorter."""
    count = x.rank - 2
    strides, dilations = (settings.get(name, [1] * count) for name in ("strides", "dilations"))
    return [
        (made - 1) * stride + (size - 1) * dilation + 1 - length
        for made, stride, size, dilation, length in zip(
            y.shape[2:], strides, sizes, dilations, x.shape[2:], strict=True
        )
    ]


def _halves(missing: Sequence[int], auto: str) -> list[int]:
    """Padding at both ends; of an odd number the larger half is the later one in SAME_UPPER."""
    less = [max(one, 0) // 2 for one in missing]
    more = [max(one, 0) - half for one, half in zip(missing, less, strict=True)]
    return [*less, *more] if auto == "SAME_UPPER" else [*more, *less]


def _late_windows(tape: Tape, node: ir.Node) -> Sequence[Tensor] | None:
    """Rounds down where rounding up makes a window in the padding at the end.

    The kernels leave such a window out, but ONNX Runtime's own inference of shapes counts it.
    """
    x, y = tape.wrap(node.inputs[0]), tape.wrap(node.outputs[0])  # type: ignore[arg-type]
    if not (node.attributes.get_int("ceil_mode", 0) and x.static and y.static):
        return None
    settings = {name: one.value for name, one in node.attributes.items()}
    count = x.rank - 2
    strides, dilations = (settings.get(name, [1] * count) for name in ("strides", "dilations"))
    pads = settings.get("pads", [0] * 2 * count)
    # How far the last window reaches beyond the padding; negative where one was left out.
    reach = [
        (made - 1) * stride + (size - 1) * dilation + 1 - length - before - after
        for made, stride, size, dilation, length, before, after in zip(
            y.shape[2:],
            strides,
            settings["kernel_shape"],
            dilations,
            x.shape[2:],
            pads[:count],
            pads[count:],
            strict=True,
        )
    ]
    if all(extra >= 0 for extra in reach):
        return None
    beyond = [max(extra, 0) for extra in reach]
    if settings.get("count_include_pad") and any(beyond):
        # Only what lies within the padding counts.
        x = tape.Pad(x, [0, 0, *pads[:count], 0, 0, *pads[count:]])
        settings["count_include_pad"], pads = 0, [0] * 2 * count
    after = [pad + extra for pad, extra in zip(pads[count:], beyond, strict=True)]
    settings |= {"ceil_mode": 0, "pads": [*pads[:count], *after]}
    return list(tape.many(node.op_type, len(node.outputs), x, **settings))


@_form("ConvTranspose")
def _conv_transpose(tape: Tape, node: ir.Node) -> Sequence[Tensor] | None:
    """Explicit padding; a slice and zeros where the kernel refuses the lengths that are asked for.

    Of an odd padding ONNX's text puts the larger half before an axis, with SAME_UPPER after it.
    """
    x, w = (tape.wrap(value) for value in node.inputs[:2] if value is not None)
    settings = {name: one.value for name, one in node.attributes.items()}
    auto, wanted = settings.get("auto_pad", "NOTSET"), settings.get("output_shape")
    if not (x.static and w.static):
        return None
    counts = x.shape[2:]
    ones, none = [1] * len(counts), [0] * len(counts)
    strides, extra = settings.get("strides", ones), settings.get("output_padding", none)
    whole = [
        stride * (count - 1) + (size - 1) * dilation + 1
        for stride, count, size, dilation in zip(
            strides, counts, w.shape[2:], settings.get("dilations", ones), strict=True
        )
    ]
    pads = list(settings.get("pads", [*none, *none])) if auto == "NOTSET" else [*none, *none]
    if wanted is not None or auto.startswith("SAME"):
        sizes = [one * stride for one, stride in zip(counts, strides, strict=True)]
        lengths = list(sizes if wanted is None else wanted)[-len(counts) :]
        totals = [n + more - length for n, more, length in zip(whole, extra, lengths, strict=True)]
        # What is asked for beyond the last window is zeros at the end.
        small = [max(total, 0) // 2 for total in totals]
        large = [max(total, 0) - half for total, half in zip(totals, small, strict=True)]
        extra = [more + max(-total, 0) for more, total in zip(extra, totals, strict=True)]
        pads = small + large if auto == "SAME_UPPER" else large + small
    settings = {
        name: value
        for name, value in settings.items()
        if name not in {"auto_pad", "output_shape", "pads", "output_padding"}
    }
    if all(more < stride for more, stride in zip(extra, strides, strict=True)):
        if wanted is None and not auto.startswith("SAME"):
            return None
        rest = {"pads": pads, "output_padding": extra}
        return [tape.ConvTranspose(*node.inputs, **settings, **rest)]
    made = tape.Pad(tape.ConvTranspose(x, w, **settings), [*[0] * (2 + len(counts) + 2), *extra])
    axes = list(range(2, x.rank))
    ends = [n + more for n, more in zip(whole, extra, strict=True)]
    after = [end - pad for end, pad in zip(ends, pads[len(counts) :], strict=True)]
    made = tape.Slice(made, pads[: len(counts)], after, axes)
    if len(node.inputs) > 2 and node.inputs[2] is not None:  # noqa: PLR2004 - a bias
        made = made + tape.Reshape(tape.wrap(node.inputs[2]), [1, -1, *ones])
    return [made]


@_form("SpaceToDepth", "DepthToSpace")
def _space_and_depth(tape: Tape, node: ir.Node) -> Sequence[Tensor] | None:
    """Blocks of integers, which the kernel does not move."""
    x = tape.wrap(node.inputs[0])  # type: ignore[arg-type]
    if x.dtype.is_floating_point() or not x.static:
        return None
    n, c, h, w = x.shape
    size = node.attributes.get_int("blocksize", 1)
    if node.op_type == "SpaceToDepth":
        parts = shape_ops.reshaped(x, [n, c, h // size, size, w // size, size])
        moved = tape.Transpose(parts, perm=[0, 3, 5, 1, 2, 4])
        return [shape_ops.reshaped(moved, [n, c * size * size, h // size, w // size])]
    rest = c // (size * size)
    if node.attributes.get_string("mode", "DCR") == "DCR":
        parts, perm = shape_ops.reshaped(x, [n, size, size, rest, h, w]), [0, 3, 4, 1, 5, 2]
    else:
        parts, perm = shape_ops.reshaped(x, [n, rest, size, size, h, w]), [0, 1, 4, 2, 5, 3]
    moved = tape.Transpose(parts, perm=perm)
    return [shape_ops.reshaped(moved, [n, rest, h * size, w * size])]


# PopART's indices have 32 bits.


_OF_INDICES = {"ArgMax": 0, "ArgMin": 0, "TopK": 1}


def _narrow_indices(graph: ir.Graph) -> None:
    """Makes computed indices int32, as in PopART; readers that need 64 bits widen them.

    Sub-graphs keep their types: they read such indices as 64 bits.
    """
    tape = Tape(graph)
    wide: dict[ir.Value, ir.Value] = {}
    for node in list(graph):
        if wide:
            _widen(tape, node, wide)
        index = _OF_INDICES.get(node.op_type) if not node.domain else None
        if index is None or not node.outputs[index : index + 1]:
            continue
        settings = {name: one.value for name, one in node.attributes.items()}
        with tape.at(node, f"{node.outputs[0].name}/", node.metadata_props):
            made = list(tape.many(node.op_type, len(node.outputs), *node.inputs, **settings))
            found = made[index]
            made[index] = tape.Cast(found, to=ir.DataType.INT32)
            tape.substitute(node, made)
        wide[made[index].value] = found.value


def _widen(tape: Tape, node: ir.Node, wide: dict[ir.Value, ir.Value]) -> None:
    """Gives a node 64-bit operands where it needs them, or its other operands have 64 bits."""
    if not any(one is not None and one.dtype is ir.DataType.INT32 for one in node.inputs) and not (
        any(subgraphs(node))
    ):
        return
    places: Collection[int]
    if any(subgraphs(node)):
        for inner in subgraphs(node):
            for seen in [one for one in captured(node) if one in wide]:
                replace_inside(inner, seen, wide[seen])
        places = [index for index, value in enumerate(node.inputs) if value in wide]
    else:
        places = _wide_places(node, tape.opset)
    for index, value in enumerate(node.inputs):
        if index not in places or value is None or value.dtype is not ir.DataType.INT32:
            continue
        if value in wide:
            node.replace_input_with(index, wide[value])
        else:
            _cast(tape, node, index, ir.DataType.INT64)
    # The node's output may be narrower now than in the file.
    annotate(node, tape.opset)


def _wide_places(node: ir.Node, opset: int) -> set[int]:
    """Inputs that take 64 bits only, or share their type with an input of 64 bits."""
    if node.domain:
        return set()
    formals = onnx.defs.get_schema(node.op_type, opset, "").inputs
    allowed: dict[int, frozenset[str]] = {}
    places: dict[str, list[int]] = {}
    for index, value in enumerate(node.inputs):
        if value is None or value.dtype not in (ir.DataType.INT32, ir.DataType.INT64):
            continue
        formal = formals[min(index, len(formals) - 1)]
        allowed[index] = frozenset(formal.types)
        # Variadic inputs of one type share it with each other, too.
        places.setdefault(formal.type_str, []).append(index)
    found = {i for i, types in allowed.items() if "tensor(int32)" not in types}
    for together in places.values():
        types = {one.dtype for i in together if (one := node.inputs[i]) is not None}
        if len(types) > 1:
            found.update(together)
    return found
