"""Rewrites nodes into forms that both ONNX's text and ONNX Runtime's kernels accept.

PopART's builder takes operands that ONNX's text does not allow (32-bit shapes, float16 scales). In
some places ONNX Runtime's kernels differ from the text, or do not exist. Such nodes are replaced by
equivalent ones; names of values stay.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from popdist_onnx.graph import shape_ops
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
from popdist_onnx.graph.values import constant, dims, operand

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from popdist_onnx.graph.tensor import Tensor

Form: TypeAlias = "Callable[[Tape, ir.Node], Sequence[Tensor] | None]"
"""A function that writes a node's replacement; None where the node may stay."""

_FORMS: dict[str, Form] = {"Attention": attention}

_HOMES = {
    **dict.fromkeys(("AveragePool", "Conv", "ConvTranspose", "LpPool", "MaxPool"), "paddings"),
    "Resize": "resize",
}
"""The modules with further forms, which are imported where a model has their operators."""


def form(*op_types: str) -> Callable[[Form], Form]:
    """Registers what takes the place of operators."""

    def register(function: Form) -> Form:
        _FORMS.update(dict.fromkeys(op_types, function))
        return function

    return register


def _form_of(op_type: str) -> Form | None:
    if op_type in _HOMES:
        import_module(f"popdist_onnx.graph.{_HOMES[op_type]}")
    return _FORMS.get(op_type)


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
        rewrite = _form_of(node.op_type)
        if rewrite is None or any(one is not None and one.dtype is None for one in node.inputs):
            continue
        metadata = {ORIGIN: f"{node.op_type}-{opset}", **node.metadata_props}
        with tape.at(node, f"{node.outputs[0].name}/", metadata):
            made = rewrite(tape, node)
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


@form("Scan")
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


@form("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean")
@form("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare")
def _of_elements(tape: Tape, node: ir.Node) -> Sequence[Tensor] | None:
    """A reduction over no axes: of each element alone.

    The kernels of some releases of ONNX Runtime copy the input, whatever the reduction.
    """
    axes = operand(node, 1)
    known = None if axes is None else constant(axes)
    is_empty = axes is None or (known is not None and not known.size)
    if not is_empty or not node.attributes.get_int("noop_with_empty_axes", 0):
        return None
    x = tape.wrap(node.inputs[0])  # type: ignore[arg-type]
    if node.op_type == "ReduceSumSquare":
        return [x * x]
    if node.op_type == "ReduceLogSum":
        return [tape.Log(x)]
    return [tape.Abs(x) if node.op_type in ("ReduceL1", "ReduceL2") else tape.Identity(x)]


@form(*RECURRENT)
def _recurrent(tape: Tape, node: ir.Node) -> None:
    """Sets the length of the state, which the kernels require."""
    del tape
    if (length := hidden_size(node)) is not None:
        node.attributes["hidden_size"] = ir.AttrInt64("hidden_size", length)


@form("OneHot")
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


@form("Range")
def _range(tape: Tape, node: ir.Node) -> Sequence[Tensor] | None:
    """Limits of one dimension, which the kernel takes, and its check of constants does not."""
    limits = [tape.wrap(value) for value in node.inputs if value is not None]
    if all(one.dims == () for one in limits):
        return None
    return [tape.Range(*(tape.Reshape(one, tape.ints()) for one in limits))]


@form("Mod")
def _mod(tape: Tape, node: ir.Node) -> Sequence[Tensor] | None:
    """The floored remainder of floating-point numbers, which PopART supports and ONNX does not."""
    a, b = (tape.wrap(value) for value in node.inputs if value is not None)
    if node.attributes.get_int("fmod", 0) or not a.dtype.is_floating_point():
        return None
    rest = tape.Mod(a, b, fmod=1)
    wrong = tape.And(tape.Not(tape.Equal(rest, 0.0)), tape.Xor(rest < 0, b < 0))
    return [tape.Where(wrong, rest + b, rest)]


@form("LRN")
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


@form("Slice")
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


@form("SpaceToDepth", "DepthToSpace")
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
