"""Operands that do not fit each other, found while the model is built."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from popdist_onnx.errors import ValueRangeError
from popdist_onnx.graph.compat import subgraphs
from popdist_onnx.graph.tensor import dims, static

if TYPE_CHECKING:
    from collections.abc import Sequence

_MARK = "[ShapeInferenceError]"


def require_fitting(node: ir.Node, opset: int) -> None:
    """Refuses a node of ``ai.onnx`` whose operands' shapes contradict each other.

    Args:
        node: The node, after inference gave its outputs their shapes.
        opset: The version of ``ai.onnx``.

    Raises:
        ValueRangeError: ONNX's shape inference says so, or an output's dimension is negative.
    """
    shapes = [dims(output) for output in node.outputs]
    if any(isinstance(dim, int) and dim < 0 for shape in shapes for dim in shape or ()):
        raise ValueRangeError(
            "PD510",
            f"{node.op_type} would make '{node.outputs[0].name}' with a negative dimension",
            value=shapes,
            hint="look at the padding, kernel and slice arguments",
        )
    inputs = [value for value in node.inputs if value is not None]
    known = all(value.type is not None and static(value) for value in inputs)
    # Branches and bodies are not inferred on their own.
    plain = not node.domain and not any(True for _ in subgraphs(node))
    if not plain or None not in shapes or not inputs or not known:
        return
    if complaint := _complaint(node, inputs, opset):
        raise ValueRangeError(
            "PD510",
            f"the operands of {node.op_type} do not fit each other: {complaint}",
            value={str(value.name): dims(value) for value in inputs},
        )


def _complaint(node: ir.Node, inputs: Sequence[ir.Value], opset: int) -> str | None:
    infos = {str(value.name): ir.serde.serialize_value(value) for value in inputs}
    outputs = [onnx.ValueInfoProto(name=str(output.name)) for output in node.outputs]
    graph = onnx.helper.make_graph(
        [ir.serde.serialize_node(node)], "node", list(infos.values()), outputs
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    try:
        onnx.shape_inference.infer_shapes(model, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        lines = [line for line in str(error).splitlines() if _MARK in line]
        return lines[-1].rpartition(_MARK)[2].strip() if lines else None
    return None
