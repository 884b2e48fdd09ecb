"""Copies nodes and sub-graphs, and maps their values to values of the new place."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import onnx_ir as ir

from popdist_onnx.graph.tensor import Tape

if TYPE_CHECKING:
    from collections.abc import Iterable

Inside: TypeAlias = "dict[ir.Value, ir.Value]"
"""What a value of the original is in the copy; values that it lacks are shared by both."""


def copy_nodes(tape: Tape, nodes: Iterable[ir.Node], inside: Inside) -> None:
    """Copies nodes; ``inside`` maps values to copies and gets the new outputs."""
    for node in nodes:
        attributes = {name: _attribute(tape, node, name, inside) for name in node.attributes}
        inputs = [None if value is None else inside.get(value, value) for value in node.inputs]
        metadata, tape.metadata = tape.metadata, {**node.metadata_props, **tape.metadata}
        made = tape.custom(node.domain, node.op_type, len(node.outputs), *inputs, **attributes)
        tape.metadata = metadata
        for old, new in zip(node.outputs, made, strict=True):
            if new.value.type is None:
                new.value.type = old.type
            if new.value.shape is None:
                new.value.shape = old.shape
            inside[old] = new.value


def copy_graph(graph: ir.Graph, inside: Inside, scope: str, opset: int) -> ir.Graph:
    """Copies a sub-graph; ``inside`` maps values to copies and gets those of the sub-graph."""
    made = empty_graph(f"{scope}{graph.name}", opset)
    tape = Tape(made, scope=scope)
    for value in graph.inputs:
        twin = ir.Value(name=f"{scope}{value.name}", shape=value.shape, type=value.type)
        made.inputs.append(twin)
        inside[value] = twin
    for value in graph.initializers.values():
        if value.const_value is not None:
            inside[value] = tape.state(f"{scope}{value.name}", value.const_value.numpy()).value
    copy_nodes(tape, graph, inside)
    for value in graph.outputs:
        made.outputs.append(tape.Identity(inside.get(value, value)).value)
    return made


def empty_graph(name: str, opset: int) -> ir.Graph:
    """A sub-graph without nodes, of a version of ``ai.onnx``."""
    return ir.Graph([], [], nodes=[], opset_imports={"": opset}, name=name)


def _attribute(tape: Tape, node: ir.Node, name: str, inside: Inside) -> object:
    attribute = node.attributes[name]
    if attribute.type != ir.AttributeType.GRAPH:
        return attribute.value
    scope = f"{tape.fresh(node.op_type)}/{name}/"
    return copy_graph(attribute.as_graph(), dict(inside), scope, tape.opset)
