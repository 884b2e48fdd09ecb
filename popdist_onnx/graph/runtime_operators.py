"""Operators of ONNX Runtime's own domain, written as operators of ``ai.onnx``.

Files that were optimised for inference have them in place of several nodes. Written out, they have
gradients, and recognition makes the functions of one operator again where that is faster.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import onnx_ir as ir

from popdist_onnx.graph.compat import subgraphs
from popdist_onnx.graph.inference import inference
from popdist_onnx.graph.runtime_attention import attention, multi_head
from popdist_onnx.graph.tensor import Tape
from popdist_onnx.graph.values import dims

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from popdist_onnx.graph.inference import Info
    from popdist_onnx.graph.tensor import Tensor

DOMAIN = "com.microsoft"

_Formula: TypeAlias = "Callable[[Tape, ir.Node], Sequence[Tensor | None] | None]"

_WRITTEN: dict[str, _Formula] = {"Attention": attention, "MultiHeadAttention": multi_head}
"""The formula that replaces a node, by operator; its result is None where the node stays."""


def _operator(*op_types: str) -> Callable[[_Formula], None]:
    def register(function: _Formula) -> None:
        _WRITTEN.update(dict.fromkeys(op_types, function))

    return register


def write_out(graph: ir.Graph, opset: int) -> None:
    """Replaces operators of ONNX Runtime whose formula is known; opset 18 or newer.

    Args:
        graph: The graph, changed in place; its types and shapes are inferred.
        opset: Its version of ``ai.onnx``.
    """
    tape = Tape(graph, opset=opset)
    for node in list(graph):
        for inner in subgraphs(node):
            write_out(inner, opset)
        if node.domain == DOMAIN and node.op_type in _WRITTEN:
            with tape.at(node, f"{node.name or node.outputs[0].name}/", node.metadata_props):
                made = _WRITTEN[node.op_type](tape, node)
                if made is not None:
                    tape.substitute(node, made)


def _first(tape: Tape, node: ir.Node) -> Tensor:
    return tape.wrap(node.inputs[0])  # type: ignore[arg-type]  # required by the operator


@_operator("Gelu", "BiasGelu")
def _gelu(tape: Tape, node: ir.Node) -> Sequence[Tensor]:
    bias = tape.optional(node, 1)
    x = _first(tape, node) if bias is None else _first(tape, node) + bias
    return [x * (tape.Erf(x * (1 / math.sqrt(2))) + 1.0) * 0.5]


@_operator("FastGelu")
def _fast_gelu(tape: Tape, node: ir.Node) -> Sequence[Tensor]:
    bias = tape.optional(node, 1)
    x = _first(tape, node) if bias is None else _first(tape, node) + bias
    inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
    return [x * (tape.Tanh(inner) + 1.0) * 0.5]


@_operator("QuickGelu")
def _quick_gelu(tape: Tape, node: ir.Node) -> Sequence[Tensor]:
    x = _first(tape, node)
    return [x * tape.Sigmoid(x * node.attributes.get_float("alpha", 1.702))]


@_operator("FusedMatMul")
def _fused_product(tape: Tape, node: ir.Node) -> Sequence[Tensor]:
    a, b = (tape.wrap(value) for value in node.inputs[:2] if value is not None)
    product = _turned(node, a, "A") @ _turned(node, b, "B")
    alpha = node.attributes.get_float("alpha", 1.0)
    return [product if alpha == 1.0 else product * alpha]


def _turned(node: ir.Node, x: Tensor, side: str) -> Tensor:
    order = _order(node, x.rank, side)
    return x if order == list(range(x.rank)) else x.tape.Transpose(x, perm=order)


def _order(node: ir.Node, rank: int, side: str) -> list[int]:
    order = list(range(rank))
    if node.attributes.get_int(f"transBatch{side}", 0):
        # The first dimension becomes the last but one.
        order = [*order[1:-1], 0, order[-1]]
    if node.attributes.get_int(f"trans{side}", 0) and rank > 1:
        order[-2:] = order[-1], order[-2]
    return order


@_operator("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def _skip_normalization(tape: Tape, node: ir.Node) -> Sequence[Tensor | None]:
    simple = node.op_type == "SkipSimplifiedLayerNormalization"
    total = _first(tape, node) + tape.optional(node, 1)
    if (bias := tape.optional(node, 3 if simple else 4)) is not None:
        total = total + bias
    scale, shift = tape.optional(node, 2), None if simple else tape.optional(node, 3)
    mean = None if simple else tape.ReduceMean(total, tape.ints(-1))
    centred = total if mean is None else total - mean
    square = tape.ReduceMean(centred * centred, tape.ints(-1))
    epsilon = node.attributes.get_float("epsilon", 1e-12)
    inverse = 1.0 / tape.Sqrt(square + epsilon)
    made = centred * inverse * scale
    made = made if shift is None else made + shift
    return [made, mean, inverse, total][: len(node.outputs)]


@inference(DOMAIN, "Gelu", "BiasGelu", "FastGelu", "QuickGelu")
def _like_first(node: ir.Node) -> Sequence[Info]:
    (first, *_) = node.inputs
    return [] if first is None or first.shape is None else [(first.dtype, dims(first))]


@inference(DOMAIN, "SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def _like_sum(node: ir.Node) -> Sequence[Info]:
    (first, *_) = node.inputs
    if first is None or (known := dims(first)) is None:
        return []
    row = [*known[:-1], 1]
    every: list[Info] = [(first.dtype, known)]
    every += [(ir.DataType.FLOAT, row), (ir.DataType.FLOAT, row), (first.dtype, known)]
    return every[: len(node.outputs)]


@inference(DOMAIN, "FusedMatMul")
def _product(node: ir.Node) -> Sequence[Info]:
    a, b = node.inputs[:2]
    if a is None or b is None:
        return []
    shapes = [dims(a), dims(b)]
    if any(one is None or len(one) < 2 for one in shapes):  # noqa: PLR2004 - matrices
        return []
    left, right = (
        [one[place] for place in _order(node, len(one), side)]
        for one, side in zip(shapes, "AB", strict=True)
        if one is not None
    )
    lead = _broadcast(left[:-2], right[:-2])
    return [(a.dtype, None if lead is None else [*lead, left[-2], right[-1]])]


def _broadcast(
    one: Sequence[int | str | None], other: Sequence[int | str | None]
) -> list[int | str | None] | None:
    count = max(len(one), len(other))
    padded = ([*[1] * (count - len(each)), *each] for each in (one, other))
    found: list[int | str | None] = []
    for a, b in zip(*padded, strict=True):
        if b in (a, 1):
            found.append(a)
        elif a == 1:
            found.append(b)
        else:
            return None
    return found
