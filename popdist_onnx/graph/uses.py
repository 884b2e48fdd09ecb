"""Makes readers of one value read another."""

from __future__ import annotations

import onnx_ir as ir

from popdist_onnx.graph.compat import subgraphs


def replace_uses(graph: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    """Makes everything that reads one value read another, the graph's outputs included.

    Args:
        graph: The main graph.
        old: The value to replace.
        new: What replaces it.
    """
    for user, index in list(old.uses()):
        if isinstance(user, ir.Node):
            user.replace_input_with(index, new)
    for index, output in enumerate(graph.outputs):
        if output is old:
            graph.outputs[index] = new
    for user in graph:
        for inner in subgraphs(user):
            replace_uses(inner, old, new)
