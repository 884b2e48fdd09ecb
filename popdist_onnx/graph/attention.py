"""`Attention` of opset 23 as the operators of its published formula.

Texts, functions and kernels of this operator differ. Until onnx 1.19, its function confuses heads
and positions of three-dimensional tensors and gives key heads to query heads alternately. Its first
text adds the mask before the cap of the scores, so that masked positions take part again; kernels
and the newest text add it afterwards. The newest text is what is written here, for all releases:
``softmax(cap(Q K' scale) + bias) V``, with causal positions counted from the end of the past.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from popdist_onnx.graph import shape_ops
from popdist_onnx.graph.values import dims

if TYPE_CHECKING:
    from popdist_onnx.graph.tensor import Tape, Tensor

_BY_POSITION = 3
"""Dimensions of operands ``[batch, position, heads * width]``."""

_LARGEST_INPUTS = 6
"""Inputs of opset 23; a seventh one, of opset 24, counts keys that are no padding."""

_RAW, _CAPPED, _MASKED, _WEIGHTS = range(4)
"""What the fourth output holds."""

_BATCH, _HEADS, _POSITION, _WIDTH = range(4)


def attention(tape: Tape, node: ir.Node) -> list[Tensor] | None:
    """The outputs of an `Attention` node, by other operators.

    Args:
        tape: Where they are written.
        node: The node.

    Returns:
        A tensor for each of the node's outputs; None for forms of later opsets (windows, counts of
        keys), and where number or width of the heads is not known: these are not replaced.
    """
    windows = any(name.endswith("_window_size") for name in node.attributes)
    if windows or len(node.inputs) > _LARGEST_INPUTS or not _has_known_heads(node):
        return None
    q, k, v, mask, past_key, past_value = (
        None if value is None else tape.wrap(value)
        for value in (*node.inputs, *[None] * (_LARGEST_INPUTS - len(node.inputs)))
    )
    assert q is not None and k is not None and v is not None  # noqa: S101, PT018 - not optional
    number = node.attributes.get_int
    flat = q.rank == _BY_POSITION
    if flat:
        heads, groups = number("q_num_heads", 0), number("kv_num_heads", 0)
        q, k, v = _by_head(q, heads), _by_head(k, groups), _by_head(v, groups)
    if past_key is not None and past_value is not None:
        k, v = tape.Concat(past_key, k, axis=_POSITION), tape.Concat(past_value, v, axis=_POSITION)
    present = [k, v]
    k, v = _repeated(k, q), _repeated(v, q)
    width = _length(q, _WIDTH)
    scale = math.sqrt(node.attributes.get_float("scale", 1 / math.sqrt(width)))
    raw = (q * scale) @ tape.Transpose(k * scale, perm=[0, 1, 3, 2])
    scores = raw
    if (cap := node.attributes.get_float("softcap", 0.0)) > 0:
        scores = tape.Tanh(scores / cap) * cap
    shown = {_RAW: raw, _CAPPED: scores}
    bias = None if mask is None else _additive(mask, q.dtype, k)
    dead = None
    if number("is_causal", 0):
        causal = _causal(q, k, past_key)
        bias = causal if bias is None else bias + causal
    if mask is not None and bias is not None:
        # A row without any position has no weights: its result is zero, not the mean of nothing.
        dead = tape.ReduceMax(tape.Cast(bias, to=ir.DataType.FLOAT), [-1], keepdims=1)
        dead = tape.IsInf(dead, detect_positive=0)
        shown[_MASKED] = scores + bias
        bias = tape.Where(dead, tape.scalar(0, bias.dtype), bias)
    if bias is not None:
        scores = scores + bias
    shown.setdefault(_MASKED, scores)
    precision = ir.DataType(number("softmax_precision", q.dtype.value))
    weights = tape.Softmax(_as(scores, precision), axis=-1)
    shown[_WEIGHTS] = weights = _as(weights, q.dtype)
    y = weights @ _as(v, q.dtype)
    if dead is not None:
        nothing = tape.scalar(0, q.dtype)
        y = tape.Where(dead, nothing, y)
        shown[_WEIGHTS] = tape.Where(dead, nothing, weights)
    if flat:
        y = tape.Reshape(tape.Transpose(y, perm=[0, 2, 1, 3]), [0, 0, -1])
    outputs = [y, *present, shown[number("qk_matmul_output_mode", 0)]]
    # One tensor must not take two names.
    return [tape.Identity(one) for one in outputs[: len(node.outputs)]]


def _has_known_heads(node: ir.Node) -> bool:
    for value in node.inputs[:3]:
        known = None if value is None else dims(value)
        if known is None or not isinstance(known[-1], int):
            return False
        if len(known) != _BY_POSITION and not isinstance(known[_HEADS], int):
            return False
    return True


def misfit(node: ir.Node) -> str | None:  # noqa: PLR0911 - one for each sentence
    """What is wrong with the operands of an `Attention` node; None where they fit, or are unknown.

    Args:
        node: The node.

    Returns:
        A sentence, or None.
    """
    known = [None if value is None else dims(value) for value in node.inputs]
    shapes = [one for one in known[:3] if one is not None]
    number = node.attributes.get_int
    if len({len(one) for one in shapes}) > 1:
        return "query, key and value have different numbers of dimensions"
    if len(shapes) < 3:  # noqa: PLR2004 - query, key and value
        return None
    pasts = [index < len(node.inputs) and node.inputs[index] is not None for index in (4, 5)]
    if pasts[0] != pasts[1]:
        return "past_key and past_value are given together, or neither"
    q, k, v = shapes
    if len(q) == _BY_POSITION:
        heads, groups = number("q_num_heads", 0), number("kv_num_heads", 0)
        if not heads or not groups:
            return "three-dimensional operands need q_num_heads and kv_num_heads"
        for name, one, count in (("query", q, heads), ("key", k, groups), ("value", v, groups)):
            if isinstance(one[2], int) and one[2] % count:
                return f"{one[2]} numbers of the {name} do not divide into {count} heads"
    else:
        heads, groups = q[1], k[1]  # type: ignore[assignment]
    if isinstance(heads, int) and isinstance(groups, int) and heads % groups:
        return f"{heads} query heads do not divide into {groups} key heads"
    return None


def _length(tensor: Tensor, axis: int) -> int:
    """A length that has to be known."""
    length = tensor.lengths[axis]
    return length if isinstance(length, int) else tensor.shape[axis]


def _as(tensor: Tensor, dtype: ir.DataType) -> Tensor:
    return tensor if tensor.dtype == dtype else tensor.tape.Cast(tensor, to=dtype)


def _by_head(tensor: Tensor, heads: int) -> Tensor:
    """``[batch, position, heads * width]`` as ``[batch, heads, position, width]``."""
    tape = tensor.tape
    width = _length(tensor, 2) // heads
    return tape.Transpose(tape.Reshape(tensor, [0, 0, heads, width]), perm=[0, 2, 1, 3])


def _repeated(tensor: Tensor, q: Tensor) -> Tensor:
    """Keys or values by query head: neighbouring query heads share one."""
    tape, heads, groups = tensor.tape, _length(q, _HEADS), _length(tensor, _HEADS)
    if heads == groups:
        return tensor
    each = tape.Expand(tape.Unsqueeze(tensor, [2]), [1, 1, heads // groups, 1, 1])
    return tape.Reshape(each, [0, heads, -1, _length(tensor, _WIDTH)])


def _additive(mask: Tensor, dtype: ir.DataType, k: Tensor) -> Tensor:
    """A mask as numbers that are added: true is zero, false is minus infinity."""
    tape = mask.tape
    if mask.dtype == ir.DataType.BOOL:
        mask = tape.Where(mask, tape.scalar(0.0, dtype), tape.scalar(-math.inf, dtype))
    mask = _as(mask, dtype)
    given, wanted = (one.lengths[axis] for one, axis in ((mask, -1), (k, _POSITION)))
    if isinstance(given, int) and isinstance(wanted, int) and 1 < given < wanted:
        # Since opset 24 a mask may end before the keys do.
        pads = [*[0] * (2 * mask.rank - 1), wanted - given]
        mask = tape.Pad(mask, pads, tape.scalar(-math.inf, dtype))
    return mask


def _causal(q: Tensor, k: Tensor, past: Tensor | None) -> Tensor:
    """Minus infinity for each key behind the query's own position, which is behind the past."""
    tape = q.tape
    queries, keys = q.lengths[_POSITION], k.lengths[_POSITION]
    before = 0 if past is None else past.lengths[_POSITION]
    if all(isinstance(one, int) for one in (queries, keys, before)):
        allowed = np.tri(int(queries or 0), int(keys or 0), int(before or 0), dtype=bool)
        content = np.where(allowed, 0.0, -np.inf)
        return tape.constant(content.astype(q.dtype.numpy()))
    rows, columns = (tape.Range(0, _dynamic(one, _POSITION), 1) for one in (q, k))
    if past is not None:
        rows = rows + _dynamic(past, _POSITION)
    allowed_now = tape.LessOrEqual(columns, tape.Unsqueeze(rows, [1]))
    zero, never = tape.scalar(0.0, q.dtype), tape.scalar(-math.inf, q.dtype)
    return tape.Where(allowed_now, zero, never)


def _dynamic(tensor: Tensor, axis: int) -> Tensor:
    """A length as a scalar tensor."""
    return tensor.tape.Gather(shape_ops.lengths(tensor), tensor.tape.scalar(axis), axis=0)
