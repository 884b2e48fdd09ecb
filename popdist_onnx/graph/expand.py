"""Replaces operators that ONNX defines as functions by the nodes of the function.

Slices that take a tensor apart become splits. Functions with branches stay as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from popdist_onnx.graph.compat import FLOATING
from popdist_onnx.graph.inference import type_proto
from popdist_onnx.graph.tensor import Tape
from popdist_onnx.graph.values import constant, dims, static

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from popdist_onnx.graph.tensor import Tensor


_WRITTEN_ELSEWHERE = ("Attention",)
"""Functions of some releases of onnx differ from the kernels: `popdist_onnx.graph.attention`."""


def expand(graph: ir.Graph, nodes: Collection[ir.Node]) -> int:
    """Replaces nodes that are functions, and returns their number."""
    tape, count = Tape(graph), 0
    for node in nodes:
        function = _function(node, tape.opset)
        if function is not None:
            with tape.at(node, f"{node.outputs[0].name}/", node.metadata_props):
                tape.substitute(node, _inlined(tape, node, function))
            count += 1
    return count


def _function(node: ir.Node, opset: int) -> onnx.FunctionProto | None:
    if node.domain or not onnx.defs.has(node.op_type, opset, ""):
        return None
    written = _written(node, opset)
    if not written:
        return None
    function = onnx.FunctionProto.FromString(written)
    branches = any(one.HasField("g") or one.graphs for n in function.node for one in n.attribute)
    return None if branches or node.op_type in _WRITTEN_ELSEWHERE else function


def _written(node: ir.Node, opset: int) -> bytes:
    # The stubs of onnx leave the functions of a schema out.
    schema: Any = onnx.defs.get_schema(node.op_type, opset, "")
    if schema.has_context_dependent_function:
        types = [
            b"" if value is None else type_proto(value).SerializeToString() for value in node.inputs
        ]
        serialized = ir.serde.serialize_node(node).SerializeToString()
        return _newest(
            schema.context_dependent_function_opset_versions,
            opset,
            lambda version: schema.get_context_dependent_function_with_opset_version(
                version, serialized, types
            ),
        )
    return _newest(schema.function_opset_versions, opset, schema.get_function_with_opset_version)


def _newest(versions: Sequence[int], opset: int, body: Callable[[int], bytes]) -> bytes:
    fitting = [version for version in versions if version <= opset]
    return body(max(fitting)) if fitting else b""


def _inlined(tape: Tape, node: ir.Node, function: onnx.FunctionProto) -> list[Tensor]:
    values: dict[str, Tensor | None] = {"": None}
    for name, value in zip(function.input, node.inputs, strict=False):
        values[name] = None if value is None else tape.wrap(value)
    settings = _settings(node, function)
    for inner in function.node:
        attributes = {
            one.name: settings.get(one.ref_attr_name) if one.ref_attr_name else _value(one)
            for one in inner.attribute
        }
        made = tape.custom(
            inner.domain,
            inner.op_type,
            len(inner.output),
            *(values.get(name) for name in inner.input),
            **attributes,
        )
        values.update(zip(inner.output, made, strict=True))
    outputs = [values[name] for name in function.output[: len(node.outputs)]]
    return [one for one in outputs if one is not None]


def _settings(node: ir.Node, function: onnx.FunctionProto) -> Mapping[str, object]:
    defaults = {one.name: _value(one) for one in function.attribute_proto}
    schema = onnx.defs.get_schema(node.op_type)
    for name, attribute in schema.attributes.items():
        if attribute.default_value.type:
            defaults.setdefault(name, _value(attribute.default_value))
    return defaults | {name: one.value for name, one in node.attributes.items()}


def _value(attribute: onnx.AttributeProto) -> object:
    value = ir.serde.deserialize_attribute(attribute)
    return getattr(value, "value", None)


_SPLIT_TAKES_SIZES = 13
"""The first opset in which the lengths of the parts are an input."""


# Slices that divide a tensor among them become one split.


def split_slices(graph: ir.Graph, opset: int) -> None:
    """Replaces slices that take a tensor apart by a `Split`.

    torch's exporter takes the weights of an LSTM apart like this, and joins them in another order.
    The gradient of a `Split` joins the parts' gradients; that of each `Slice` is a whole tensor,
    zero outside of the slice, and all these are summed.
    """
    if opset < _SPLIT_TAKES_SIZES:
        return
    tape = Tape(graph, opset=opset)
    places = {node: place for place, node in enumerate(graph)}
    for value in dict.fromkeys(
        n.inputs[0] for n in graph if (n.domain, n.op_type) == ("", "Slice")
    ):
        if value is not None and value.dtype in FLOATING:
            _split_slices(tape, value, places)


def _split_slices(tape: Tape, value: ir.Value, places: Mapping[ir.Node, int]) -> None:
    readers = [
        node
        for node in value.consumers()
        if (node.domain, node.op_type) == ("", "Slice") and node in places
    ]
    pieces = {
        node: piece
        for node in readers
        if node.inputs[0] is value and (piece := _piece(node)) is not None
    }
    for axis in dict.fromkeys(axis for axis, _, _ in pieces.values()):
        parts = sorted(
            (start, stop, places[node], node)
            for node, (of, start, stop) in pieces.items()
            if of == axis
        )
        borders = [0, *(stop for _, stop, _, _ in parts)]
        divided = all(start == border for (start, *_), border in zip(parts, borders, strict=False))
        if len(parts) == 1 or not divided or borders[-1] != (dims(value) or ())[axis]:
            continue
        sizes = [stop - start for start, stop, _, _ in parts]
        first = min((node for *_, node in parts), key=places.__getitem__)
        with tape.at(first, f"{first.name or first.outputs[0].name}/", first.metadata_props):
            made = tape.many("Split", len(parts), value, tape.ints(*sizes), axis=axis)
        for (*_, node), part in zip(parts, made, strict=True):
            tape.substitute(node, [part])


def _piece(node: ir.Node) -> tuple[int, int, int] | None:
    """Axis, start and stop of a slice of one axis without gaps; None for others."""
    given = [None if value is None else constant(value) for value in node.inputs[1:]]
    value = node.inputs[0]
    if value is None or not static(value) or any(one is None or one.size != 1 for one in given):
        return None
    start, end, *rest = (int(np.asarray(one).item()) for one in given)
    axis, step = (*rest, *(0, 1)[len(rest) :])
    length = (dims(value) or ())[axis]
    if step != 1 or not isinstance(length, int):
        return None
    first, last, _ = slice(start, end).indices(length)
    return axis % len(dims(value) or ()), first, max(first, last)
