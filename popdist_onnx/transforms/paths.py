"""Which values and nodes lie between some tensors and the loss, and whether all have a rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.errors import popart_exception
from popdist_onnx.gradients.registry import described, rule_of
from popdist_onnx.graph.compat import FLOATING, captured

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import onnx_ir as ir

_SHOWN = 20

_CONTROL = ("If", "Loop", "Scan")

_UNROLL = "export the model with loops unrolled and branches decided, or detach the node's input"

_FREEZE = (
    "freeze the weights before such a node, detach its input, or register a rule with "
    "popdist_onnx.gradients.registry.gradient"
)


class Paths:
    """The values and nodes between some tensors and the loss.

    Args:
        graph: The graph.
        sources: Where gradients are to arrive.
        loss: Where they start.
    """

    def __init__(self, graph: ir.Graph, sources: Collection[ir.Value], loss: ir.Value) -> None:
        self.sources = list(dict.fromkeys(sources))
        from_source = set(self.sources)
        nodes = list(graph)
        for node in nodes:
            if any(value in from_source for value in _flowing(node)):
                from_source.update(value for value in node.outputs if _may_flow(value))
        to_loss = {loss}
        for node in reversed(nodes):
            if any(value in to_loss for value in node.outputs):
                to_loss.update(_flowing(node))
        self.values = from_source & to_loss
        self.nodes = [
            node
            for node in nodes
            if any(value in self.values for value in node.outputs)
            and any(value in self.values for value in _flowing(node))
        ]

    def without_rule(self) -> list[ir.Node]:
        """The nodes on the way that have no rule.

        Returns:
            The nodes in graph order.
        """
        return [node for node in self.nodes if rule_of(node) is None]

    def require_rules(self) -> None:
        """Checks that every node on the way has a rule.

        Raises:
            popart_exception: Nodes have none; all of them are named.
        """
        lost = self.without_rule()
        if not lost:
            return
        lines = [f"{described(node)}" for node in lost[:_SHOWN]]
        if len(lost) > _SHOWN:
            lines.append(f"and {len(lost) - _SHOWN} more")
        raise popart_exception(
            "PD522",
            "operators between a weight and the loss have no gradient rule:\n    "
            + "\n    ".join(lines),
            accepted="the operators of docs/onnx-operators.md",
            hint=_UNROLL if any(node.op_type in _CONTROL for node in lost) else _FREEZE,
        )


def _flowing(node: ir.Node) -> Iterator[ir.Value]:
    """The inputs that gradients can flow to."""
    rule = rule_of(node)
    if rule is not None and rule.function is None:
        return
    for index, value in enumerate(node.inputs):
        if (
            value is not None
            and _may_flow(value)
            and (rule is None or rule.inputs is None or index in rule.inputs)
        ):
            yield value
    yield from (value for value in captured(node) if _may_flow(value))


def _may_flow(value: ir.Value) -> bool:
    """An unknown type must not cut a gradient off without a word."""
    return value.dtype is None or value.dtype in FLOATING
