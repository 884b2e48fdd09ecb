"""Types and shapes of what loops make, where ONNX's inference stays silent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.graph.inference import Info, inference
from popdist_onnx.graph.tensor import dims

if TYPE_CHECKING:
    import onnx_ir as ir

_BEFORE_STATE = 2
"""Inputs of a loop before its state: the most turns, and the condition."""


@inference("", "Loop")
def loop_outputs(node: ir.Node) -> list[Info]:
    """A state that leaves the body as it entered the loop keeps its shape.

    ONNX says nothing of it, because a body may change its state's shape from turn to turn.

    Args:
        node: The loop.

    Returns:
        Type and shape of its outputs.
    """
    body = node.attributes["body"].as_graph()
    begun = node.inputs[_BEFORE_STATE:]
    made = body.outputs[1:]
    found: list[Info] = []
    for number, value in enumerate(made):
        shape = dims(value)
        if number >= len(begun):
            found.append((value.dtype, None if shape is None else [None, *shape]))
            continue
        first = begun[number]
        same = first is not None and shape is not None and dims(first) == shape
        found.append((value.dtype, shape if same else None))
    return found
