"""Differences between releases of onnx and onnx-ir, copies of models, and replaced values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


FLOATING = (
    ir.DataType.FLOAT,
    ir.DataType.FLOAT16,
    ir.DataType.BFLOAT16,
    ir.DataType.DOUBLE,
)
"""Element types of weights, which gradients flow through (8-bit floats are storage only).

Their numbers are those of ``onnx.TensorProto`` too."""


OLDEST_OPSET = 6
"""The oldest opset that is read and built: older ones lack most of today's operators.

Of older files those are read whose operators have the same definition in this opset."""

WORKING_OPSET = 18
"""Models of an older opset are brought to this one."""


def newest_opset() -> int:
    """The newest ``ai.onnx`` opset that the installed onnx knows."""
    return int(onnx.defs.onnx_opset_version())


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs that a node holds in its attributes."""
    for attribute in node.attributes.values():
        yield from graphs_in(attribute)


def graphs_in(attribute: ir.Attr) -> Iterator[ir.Graph]:
    """The graphs that an attribute holds."""
    if attribute.type == ir.AttributeType.GRAPH:
        yield attribute.as_graph()
    elif attribute.type == ir.AttributeType.GRAPHS:
        yield from attribute.as_graphs()


def graphs_within(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph of a file and all graphs inside of its nodes."""
    yield graph
    for node in graph.node:
        yield from graphs_inside(node)


def graphs_inside(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """All graphs inside of a node of a file."""
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from graphs_within(graph)


def captured(node: ir.Node) -> list[ir.Value]:
    """The outer values that a node's sub-graphs read, in the order of their first use."""
    found: dict[ir.Value, None] = {}
    for graph in subgraphs(node):
        inside = {*graph.inputs, *graph.initializers.values()}
        for inner in graph:
            for value in [*inner.inputs, *captured(inner)]:
                if value is not None and value not in inside:
                    found[value] = None
            inside.update(inner.outputs)
        found.update({value: None for value in graph.outputs if value not in inside})
    return list(found)


def reads(node: ir.Node) -> list[ir.Value]:
    """The inputs of a node, with the outer values that its sub-graphs read."""
    return [value for value in node.inputs if value is not None] + captured(node)


# Copies, for which only newer releases of onnx-ir have a method.


def clone(model: ir.Model) -> ir.Model:
    """A copy of a model that shares its tensors, types and shapes, which passes do not change."""
    twins: dict[ir.Value, ir.Value] = {}
    return ir.Model(
        _cloned(model.graph, model.graph.initializers.values(), twins),
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        functions=[
            ir.Function(
                one.domain,
                one.name,
                one.overload,
                graph=_cloned(one, (), twins),
                attributes=list(one.attributes.values()),
            )
            for one in model.functions.values()
        ],
        metadata_props=dict(model.metadata_props),
    )


def _cloned(
    graph: ir.Graph | ir.Function, weights: Iterable[ir.Value], twins: dict[ir.Value, ir.Value]
) -> ir.Graph:
    def twin(value: ir.Value) -> ir.Value:
        if value not in twins:
            made = twins[value] = ir.Value(
                name=value.name,
                # onnx-ir reads, but does not write, shapes of values without a type.
                shape=None if value.type is None else value.shape,
                type=value.type,
                doc_string=value.doc_string,
                const_value=value.const_value if value.is_initializer() else None,
            )
            made.metadata_props.update(value.metadata_props)
            made.meta.update(value.meta)  # the file's annotations of quantized values
        return twins[value]

    def attribute(one: ir.Attr) -> ir.Attr:
        if one.is_ref() or one.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            return one
        inner = [_cloned(each, each.initializers.values(), twins) for each in graphs_in(one)]
        content = inner[0] if one.type == ir.AttributeType.GRAPH else inner
        return ir.Attr(one.name, one.type, content, doc_string=one.doc_string)

    return ir.Graph(
        [twin(value) for value in graph.inputs],
        [twin(value) for value in graph.outputs],
        nodes=[
            ir.Node(
                node.domain,
                node.op_type,
                [None if value is None else twin(value) for value in node.inputs],
                [attribute(one) for one in node.attributes.values()],
                overload=node.overload,
                outputs=[twin(value) for value in node.outputs],
                version=node.version,
                name=node.name,
                doc_string=node.doc_string,
                metadata_props=dict(node.metadata_props),
            )
            for node in graph
        ],
        initializers=[twin(value) for value in weights],
        doc_string=graph.doc_string,
        opset_imports=dict(graph.opset_imports),
        name=graph.name,
        metadata_props=dict(graph.metadata_props),
    )


# Replacement of one value by another in its readers.


def replace_uses(graph: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    """Replaces a value in all its readers and among the graph's outputs."""
    for user, index in list(old.uses()):
        user.replace_input_with(index, new)
    if not old.is_graph_output():
        # Most values are no outputs, and graphs are long.
        return
    places = [index for index, output in enumerate(graph.outputs) if output is old]
    for index in places:
        graph.outputs[index] = new
    if places:
        # A value is an output of one graph only.
        return
    for user in graph:
        for inner in subgraphs(user):
            replace_uses(inner, old, new)


def replace_inside(graph: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    """Replaces a value in the nodes and outputs of one sub-graph; readers outside stay."""
    for user in graph:
        for index, value in enumerate(user.inputs):
            if value is old:
                user.replace_input_with(index, new)
        for inner in subgraphs(user):
            replace_inside(inner, old, new)
    for index, output in enumerate(graph.outputs):
        if output is old:
            graph.outputs[index] = new


# Removal of nodes.


def keep_only(graph: ir.Graph, outputs: Sequence[ir.Value]) -> set[ir.Value]:
    """Cuts a sorted graph down to the nodes before some values, its only outputs from then on.

    Returns:
        All values that are still read or returned.
    """
    needed, unneeded = set(outputs), []
    for node in reversed(graph):
        if needed.isdisjoint(node.outputs):
            unneeded.append(node)
        else:
            needed.update(reads(node))
    graph.outputs.clear()
    graph.outputs.extend(outputs)
    for node in unneeded:
        _detach(node)
    graph.remove(unneeded)
    return needed


def _detach(node: ir.Node) -> None:
    """Ends all uses of values by a node and the nodes inside of it."""
    for index in range(len(node.inputs)):
        node.replace_input_with(index, None)
    for graph in subgraphs(node):
        for inner in graph:
            _detach(inner)
