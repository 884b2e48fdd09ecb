"""The weights of loops and branches, which become weights of the main graph."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import onnx_ir as ir

from popdist_onnx.graph.compat import graphs_in, subgraphs
from popdist_onnx.graph.passes import Pass
from popdist_onnx.graph.values import add_shared

if TYPE_CHECKING:
    from collections.abc import Iterator


class LiftWeights(Pass):
    """Moves the weights of loops and branches to the graph around them, where training finds them.

    A weight whose name is taken elsewhere in the model gets ``<output>/<attribute>/<name>``, for
    example ``y/then_branch/w``. The graphs of ``ai.graphcore.Call`` keep their weights, which are
    moved where the call is inlined.
    """

    def change(self, model: ir.Model) -> bool:
        """Moves them; false where there are none."""
        nodes = model.graph.all_nodes()
        if not any(inner.initializers for node in nodes for inner in subgraphs(node)):
            return False
        _lift(model.graph, Counter(_names(model.graph)))
        return True


def _names(graph: ir.Graph) -> Iterator[str]:
    """Every name that a graph and the graphs in it give to a value; one for each that gives it."""
    yield from graph.initializers
    yield from (str(value.name) for value in graph.inputs if not value.is_initializer())
    for node in graph:
        yield from (str(value.name) for value in node.outputs)
        for inner in subgraphs(node):
            yield from _names(inner)


def _lift(graph: ir.Graph, names: Counter[str]) -> None:
    for node in graph:
        for attribute in node.attributes.values():
            for inner in graphs_in(attribute):
                _lift(inner, names)
                if not node.domain:
                    _move(inner, graph, f"{node.outputs[0].name}/{attribute.name}", names)


def _move(inner: ir.Graph, graph: ir.Graph, scope: str, names: Counter[str]) -> None:
    for name, value in list(inner.initializers.items()):
        del inner.initializers[name]
        if value.is_graph_input():
            inner.inputs.remove(value)
        if names[name] == 1 and not value.is_graph_output():
            graph.initializers.add(value)
            continue
        if value.const_value is None:
            continue
        weight = add_shared(graph, _free(f"{scope}/{name}", names), value.const_value)
        value.const_value = None
        for user, index in value.uses():
            user.replace_input_with(index, weight)
        if value.is_graph_output():
            # What a graph returns must be made in it.
            inner.append(ir.Node("", "Identity", [weight], outputs=[value], name=""))


def _free(name: str, names: Counter[str]) -> str:
    found, number = name, 0
    while names[found]:
        number += 1
        found = f"{name}_{number}"
    names[found] += 1
    return found
