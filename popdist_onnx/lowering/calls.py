"""Called sub-graphs, written out where they are called, and printed tensors."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING

from popdist_onnx.graph.compat import subgraphs
from popdist_onnx.lowering.registry import Operation, lowering

if TYPE_CHECKING:
    import onnx_ir as ir

    from popdist_onnx.graph.tensor import Tensor

logger = logging.getLogger("popdist.onnx.builder")


@lowering("Call")
def call(op: Operation) -> list[Tensor]:
    """The callee's nodes on the caller's tensors; its weights become the caller's."""
    tape = op.tape
    callee = op.node.attributes["callee"].as_graph()
    arguments = op.inputs
    parameters = [one for one in callee.inputs if one.name not in callee.initializers]
    if len(arguments) != len(parameters):
        raise op.misfit(
            "passes another number of tensors than the sub-graph takes",
            value=len(arguments),
            accepted=str(len(parameters)),
        )
    inside: dict[ir.Value | None, ir.Value | None] = {None: None}
    inside.update(zip(parameters, [one.value for one in arguments], strict=True))
    for value in callee.initializers.values():
        inside[value] = _shared(op, value)
    for node in callee:
        if node.op_type != "Call" and any(True for _ in subgraphs(node)):
            raise op.misfit(
                f"calls a sub-graph with {node.op_type}, whose branches cannot be copied"
            )
        copies = tape.custom(
            node.domain,
            node.op_type,
            len(node.outputs),
            *[inside.get(one, one) for one in node.inputs],
            **node.attributes,
        )
        inside.update(zip(node.outputs, [one.value for one in copies], strict=True))
    return [tape.wrap(inside.get(one, one) or one) for one in callee.outputs]


def _shared(op: Operation, value: ir.Value) -> ir.Value:
    # Every call of a sub-graph uses the same weights.
    graph = op.tape.graph
    name = str(value.name)
    if name not in graph.initializers and value.const_value is not None:
        return op.tape.state(name, value.const_value.numpy()).value
    return graph.initializers[name]


@lowering("PrintTensor")
def print_tensor(op: Operation) -> Tensor:
    """The input; graphs print nothing here, so say once what to do instead."""
    (x,) = op.inputs
    _say_once(x.name)
    return op.tape.Identity(x)


@cache
def _say_once(name: str) -> None:
    # Building and loading look at the operator several times.
    logger.warning("printtensor of %s prints nothing here: anchor the tensor to see it", name)
