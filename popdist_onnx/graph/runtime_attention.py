"""Attention of ONNX Runtime's own domain, written as operators of ``ai.onnx``.

``softmax(Q K' scale + bias) V`` by head. `Attention` projects one input to Q, K and V first;
`MultiHeadAttention` gets them. Forms with a past, which only text generation has, stay.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from popdist_onnx.graph.inference import inference
from popdist_onnx.graph.values import dims

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_onnx.graph.inference import Info
    from popdist_onnx.graph.tensor import Tape, Tensor

_DOMAIN = "com.microsoft"

_BY_POSITION = 3
"""Dimensions of operands ``[batch, position, heads * width]``."""

_ENDS, _RAW, _BY_QUERY = 1, 2, 3
"""Dimensions of a mask: the number of keys, which keys count, and which of them for each query."""


def _last(value: ir.Value | None) -> int | None:
    known = None if value is None else dims(value)
    length = known[-1] if known else None
    return length if isinstance(length, int) else None


def _widths(node: ir.Node) -> list[int] | None:
    """The numbers of Q, K and V in the projection of an `Attention`; None where not known."""
    stated = node.attributes.get_ints("qkv_hidden_sizes", None)
    total = _last(node.inputs[1])
    if stated:
        return [int(one) for one in stated]
    return None if total is None else [total // 3] * 3


def attention(tape: Tape, node: ir.Node) -> Sequence[Tensor] | None:
    """The result of an `Attention`; None for forms that stay."""
    widths = _widths(node)
    x, bias, past = (tape.optional(node, index) for index in (0, 2, 4))
    rotary = node.attributes.get_int("do_rotary", 0)
    if x is None or past is not None or len(node.outputs) > 1 or widths is None or rotary:
        return None
    made = x @ tape.optional(node, 1)
    made = made if bias is None else made + bias
    q, k, v = tape.many("Split", 3, made, tape.ints(*widths), axis=2)
    mask, added = tape.optional(node, 3), tape.optional(node, 5)
    return _attended(tape, node, (q, k, v), mask, added)


def multi_head(tape: Tape, node: ir.Node) -> Sequence[Tensor] | None:
    """The result of a `MultiHeadAttention`; None for forms that stay."""
    q, k, v, bias, mask, added = (tape.optional(node, index) for index in range(6))
    known = [None if one is None or one.dims is None else len(one.dims) for one in (q, k, v)]
    generates = any(value is not None for value in node.inputs[6:]) or len(node.outputs) > 1
    if generates or known != [_BY_POSITION] * 3 or q is None or k is None or v is None:
        return None
    if bias is not None:
        widths = [_last(one.value) for one in (q, k, v)]
        if any(one is None for one in widths):
            return None
        parts = tape.many("Split", 3, bias, tape.ints(*(one or 0 for one in widths)), axis=0)
        q, k, v = (one + part for one, part in zip((q, k, v), parts, strict=True))
    return _attended(tape, node, (q, k, v), mask, added)


def _attended(
    tape: Tape,
    node: ir.Node,
    operands: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    added: Tensor | None,
) -> list[Tensor] | None:
    heads = node.attributes.get_int("num_heads", 1)
    width = _last(operands[0].value)
    if width is None or (mask is not None and (mask.dims is None or len(mask.dims) > _BY_QUERY)):
        return None
    scale = node.attributes.get_float("scale", 0.0) or 1 / math.sqrt(width // heads)
    q, k, v = (
        tape.Transpose(tape.Reshape(one, [0, 0, heads, -1]), perm=[0, 2, 1, 3]) for one in operands
    )
    scores = (q @ tape.Transpose(k, perm=[0, 1, 3, 2])) * scale
    never = node.attributes.get_float("mask_filter_value", -10000.0)
    if mask is not None:
        scores = scores + _bias(mask, k, scores.dtype, never)
    if node.attributes.get_int("unidirectional", 0):
        scores = tape.Where(_earlier(scores), scores, tape.scalar(-np.inf, scores.dtype))
    if added is not None:
        scores = scores + added
    y = tape.Transpose(tape.Softmax(scores, axis=-1) @ v, perm=[0, 2, 1, 3])
    return [tape.Reshape(y, [0, 0, -1])]


def _bias(mask: Tensor, k: Tensor, dtype: ir.DataType, never: float) -> Tensor:
    """Zero for keys that count and a large negative number for others."""
    tape = mask.tape
    if mask.rank == _ENDS:
        keys = tape.Gather(tape.Shape(k), np.asarray(2), axis=0)
        places = tape.Range(np.asarray(0), keys, np.asarray(1))
        ends = tape.Unsqueeze(tape.Cast(mask, to=ir.DataType.INT64), [1])
        counts = tape.Cast(places < ends, to=dtype)
    else:
        counts = tape.Cast(mask, to=dtype)
    axes = [1] if mask.rank == _BY_QUERY else [1, 2]
    return (1.0 - tape.Unsqueeze(counts, axes)) * never


def _earlier(scores: Tensor) -> Tensor:
    """True for each key up to the query's own position."""
    tape = scores.tape
    queries, keys = (tape.Gather(tape.Shape(scores), np.asarray(at), axis=0) for at in (2, 3))
    zero, one = np.asarray(0), np.asarray(1)
    rows = tape.Unsqueeze(tape.Range(zero, queries, one), [1])
    return tape.Range(zero, keys, one) <= rows


@inference(_DOMAIN, "Attention")
def _projected(node: ir.Node) -> Sequence[Info]:
    x, widths = node.inputs[0], _widths(node)
    known = None if x is None else dims(x)
    if x is None or known is None or widths is None:
        return []
    return [(x.dtype, [*known[:2], widths[2]])]


@inference(_DOMAIN, "MultiHeadAttention")
def _like_query(node: ir.Node) -> Sequence[Info]:
    q, *others = node.inputs
    known = None if q is None else dims(q)
    v = others[1] if len(others) > 1 else None
    if q is None or known is None or len(known) != _BY_POSITION:
        return []
    return [(q.dtype, [*known[:2], _last(v)])]
