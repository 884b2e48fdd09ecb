"""Folds nodes that depend on shapes and constants only, so that later passes see numbers."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from popdist_onnx.graph.compat import subgraphs
from popdist_onnx.graph.inference import annotate
from popdist_onnx.graph.tensor import Tape
from popdist_onnx.graph.values import constant, dims, static

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_onnx.graph.values import Array

logger = logging.getLogger("popdist.onnx")

# A larger result would only move work from ONNX Runtime's own folding into the file.
_MOST_ELEMENTS = 4096

RANDOM = frozenset(
    {
        *("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike"),
        *("RandomUniform", "RandomUniformLike"),
    }
)
"""Operators whose results differ from run to run."""

# Evaluators of older releases of onnx follow another formula of Attention; a quantized weight keeps
# its name, so that it can be listed.
_NEVER = RANDOM | {"Attention", "Constant", "DequantizeLinear"}


def fold(model: ir.Model) -> None:
    """Replaces nodes with a known result by constants, and `If` nodes by a known branch.

    Weights (floating-point initializers) are never folded: training changes them.
    """
    tape = Tape(model.graph)
    for node in list(model.graph):
        fold_node(tape, node)


def fold_node(tape: Tape, node: ir.Node) -> None:
    """Folds one node if its inputs are known; its outputs get their shapes in any case."""
    opset = tape.opset
    if node.op_type == "If" and node.domain == "":
        _inline_branch(tape, node)
        return
    if node.op_type in _NEVER or node.domain or any(subgraphs(node)):
        return
    annotate(node, opset)
    results = _results(node, opset)
    if results is None:
        return
    tape.substitute(
        node,
        [
            tape.constant(array, tape.release(output)) if output.name else None
            for output, array in zip(node.outputs, results, strict=True)
        ],
    )


def _results(node: ir.Node, opset: int) -> Sequence[Array] | None:
    if node.op_type in ("Shape", "Size"):
        return _of_shape(node)
    inputs = [None if value is None else constant(value) for value in node.inputs]
    if not node.outputs or any(
        array is None for array, value in zip(inputs, node.inputs, strict=True) if value is not None
    ):
        return None
    if node.op_type == "Range":
        return _of_range(inputs)
    if not inputs or any(not static(output) for output in node.outputs):
        return None
    if max(_size(output) for output in node.outputs) > _MOST_ELEMENTS:
        return None
    return _evaluated(node, inputs, opset)


def _size(value: ir.Value) -> int:
    return math.prod(dim for dim in dims(value) or () if isinstance(dim, int))


def _of_shape(node: ir.Node) -> Sequence[Array] | None:
    (value,) = node.inputs
    known = None if value is None else dims(value)
    if known is None:
        return None
    if node.op_type == "Size":
        wanted = known
    else:
        wanted = known[node.attributes.get_int("start", 0) : node.attributes.get_int("end", None)]
    if not all(isinstance(dim, int) for dim in wanted):
        return None
    lengths = np.asarray(wanted, np.int64)
    return [lengths if node.op_type == "Shape" else np.asarray(lengths.prod(), np.int64)]


def _of_range(limits: Sequence[Array | None]) -> Sequence[Array] | None:
    """Numbers between limits, which may have one dimension: kernels accept such, inference not."""
    start, limit, delta = (np.asarray(one) for one in limits)
    if max(start.size, limit.size, delta.size) > 1 or not delta.any():
        return None
    length = math.ceil((limit.item() - start.item()) / delta.item())
    if length > _MOST_ELEMENTS:
        return None
    return [np.arange(max(length, 0)).astype(start.dtype) * delta.reshape(()) + start.reshape(())]


def _evaluated(node: ir.Node, inputs: Sequence[Array | None], opset: int) -> Sequence[Array] | None:
    from onnx.reference import ReferenceEvaluator

    proto = ir.serde.serialize_node(node)
    feeds = {
        str(value.name): array
        for value, array in zip(node.inputs, inputs, strict=True)
        if value is not None
    }
    try:
        evaluator = ReferenceEvaluator(proto, opsets={"": opset})
        found = evaluator.run(None, feeds)
    # The evaluator lacks some operators and versions, and raises exceptions of any type for them.
    except Exception:
        logger.debug("%s (%s) is left to the runtime", node.name, node.op_type, exc_info=True)
        return None
    arrays = [np.asarray(one) for one in found]
    expected = [output.dtype for output in node.outputs]
    if any(one.dtype.kind in "OSU" for one in arrays):
        return None
    # Where the evaluator and shape inference differ, one of them does not follow the text.
    if any(one.shape != dims(output) for one, output in zip(arrays, node.outputs, strict=True)):
        return None
    return [
        array if dtype is None else array.astype(dtype.numpy(), copy=False)
        for array, dtype in zip(arrays, expected, strict=True)
    ]


def _inline_branch(tape: Tape, node: ir.Node) -> None:
    (condition,) = node.inputs
    known = None if condition is None else constant(condition)
    if known is None:
        return
    branch = node.attributes["then_branch" if known.item() else "else_branch"].as_graph()
    outputs = list(branch.outputs)
    for name, value in list(branch.initializers.items()):
        del branch.initializers[name]
        tape.graph.register_initializer(value)
    inlined = list(branch)
    for inner in inlined:
        branch.remove(inner)
        tape.graph.insert_before(node, inner)
    with tape.at(node):
        tape.substitute(node, [tape.wrap(output) for output in outputs])
    for inner in inlined:
        fold_node(tape, inner)
