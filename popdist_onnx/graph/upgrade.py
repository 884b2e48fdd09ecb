"""Rewrites nodes of older opsets to opset 18, so that every later pass knows one form only.

Names of values stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.graph.compat import subgraphs
from popdist_onnx.graph.fold import fold_node
from popdist_onnx.graph.names import ORIGIN
from popdist_onnx.graph.older_forms import UPGRADES, Parts
from popdist_onnx.graph.tape import Tape

if TYPE_CHECKING:
    import onnx_ir as ir

    from popdist_onnx.graph.older_forms import Upgrade

OLDEST_OPSET = 6
"""The oldest opset that is read: older ones lack most of today's operators."""

WORKING_OPSET = 18
"""Models of an older opset are brought to this one."""


def upgrade(model: ir.Model) -> None:
    """Brings a model to opset 18, where it is older, and folds what is constant on the way.

    Both go node by node, as a newer form may need a shape that only folding finds.

    Args:
        model: The model, with shapes; changed in place.

    Raises:
        NotOnHostError: An old form has no new one.
    """
    opset = model.graph.opset_imports[""]
    if opset >= WORKING_OPSET:
        return
    _upgrade_graph(model.graph, opset)
    model.graph.opset_imports[""] = WORKING_OPSET
    model.ir_version = max(model.ir_version, 8)


def _upgrade_graph(graph: ir.Graph, opset: int) -> None:
    tape = Tape(graph, opset=WORKING_OPSET)
    steps: dict[str, list[Upgrade]] = {}
    for since, op_type, function in sorted(UPGRADES, key=lambda one: one[0]):
        if since > opset:
            steps.setdefault(op_type, []).append(function)
    for node in list(graph):
        for inner in subgraphs(node):
            _upgrade_graph(inner, opset)
        newer = [node]
        if node.domain == "" and node.op_type in steps:
            newer = _upgrade_node(tape, node, opset, steps[node.op_type])
        for one in newer:
            fold_node(tape, one)


def _upgrade_node(tape: Tape, node: ir.Node, opset: int, steps: list[Upgrade]) -> list[ir.Node]:
    parts = Parts(
        node.op_type,
        list(node.inputs),
        {name: attribute.value for name, attribute in node.attributes.items()},
        len(node.outputs),
        [bool(output.uses()) or output in tape.graph.outputs for output in node.outputs],
    )
    tape.metadata = {ORIGIN: f"{node.op_type}-{opset}", **node.metadata_props}
    with tape.at(node, f"{node.outputs[0].name}/"):
        for step in steps:
            step(tape, parts)
        made = tape.many(parts.op_type, parts.outputs, *parts.inputs, **parts.attributes)
        newer = [made[0].value.producer()]
        if parts.after is not None:
            made = (parts.after(made[0]),)
            newer.append(made[0].value.producer())
        tape.substitute(node, made)
    return [one for one in newer if one is not None]
