"""Writes means over other amounts in each part of a batch as sums, divided by these amounts.

Such a mean is one over labels that count, over weights of classes, or over samples that a
condition selects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from popdist_onnx.graph.tensor import Tape
from popdist_onnx.graph.values import lengths, operand
from popdist_onnx.training.loss_reading import (
    VIEWS,
    WEIGHTS,
    Reader,
    axes_of,
    is_loss,
    producer,
    reduction,
)

if TYPE_CHECKING:
    from popdist_onnx.graph.tensor import Operand, Tensor

WIDE = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""The types in which sums of rows are computed; in narrower ones they can be infinite."""

_EVEN = ("Ctc", "IdentityLoss", "L1")
"""The losses whose means are over samples or elements, all of which count."""

_ROWS = 2
_DOUBLE = int(ir.DataType.DOUBLE)

_SAME_SHAPE = ("Abs", "Exp", "Log", "Neg", "Pow", "Relu", "Sigmoid", "Softplus", "Sqrt", "Tanh")


def spell_out(model: ir.Model) -> None:
    """Writes the means over other amounts in each part as divisions, in place."""
    reader = Reader(model)
    means = [
        node
        for node in model.graph
        if is_loss(node) or (node.op_type == "ReduceMean" and reader.reduces(node))
    ]
    tape = Tape(model.graph)
    for node in means:
        with tape.at(node, f"{node.outputs[0].name}/popdist."):
            made = _of_labels(tape, node) if is_loss(node) else _of_selected(tape, node)
            if made is not None:
                tape.substitute(node, [made])


def _of_labels(tape: Tape, node: ir.Node) -> Tensor | None:
    """A mean over labels; None where every label counts alike."""
    rest = any(value.name for value in node.outputs[1:])
    if reduction(node) != "mean" or rest or node.op_type in _EVEN:
        return None
    scores, labels, weights = node.inputs[0], operand(node, 1), operand(node, WEIGHTS)
    named = (node.attributes.get(name) for name in ("ignore_index", "ignoreIndex"))
    ignored = next((one.as_int() for one in named if one is not None), None)
    assert scores is not None  # noqa: S101 - a loss has both
    assert labels is not None  # noqa: S101
    is_selected = lengths(labels) is None
    if weights is None and ignored is None and not is_selected:
        return None
    kind = labels.dtype or ir.DataType.INT64
    if ignored is None:
        counted = tape.Equal(labels, labels)
    else:
        counted = tape.Not(tape.Equal(labels, tape.scalar(ignored, kind)))
    chosen, amounts = tape.wrap(labels), counted
    if weights is not None or is_selected:
        chosen = tape.Where(counted, labels, tape.scalar(0, kind))
    if weights is not None:
        rows = tape.Cast(tape.Gather(weights, chosen), to=_DOUBLE)
        amounts = rows * tape.Cast(counted, to=_DOUBLE)
    if is_selected and len(scores.shape or ()) == _ROWS and not node.domain:
        total = _of_rows(tape, node, chosen, amounts)
    elif _kind(node) in WIDE:
        total = _reduced(tape, node, "sum")
    else:
        total = tape.ReduceSum(_reduced(tape, node, "none"), keepdims=0)
    return _quotient(tape, node, total, amounts, keepdims=0, least=1 if node.domain else 0)


def _kind(mean: ir.Node) -> ir.DataType:
    return mean.outputs[0].dtype or ir.DataType.FLOAT


def _reduced(tape: Tape, node: ir.Node, name: str) -> Tensor:
    """A loss with another reduction."""
    stated = {key: one.value for key, one in node.attributes.items()}
    stated["reduction"] = name.capitalize() if node.domain else name
    made = tape.custom(node.domain, node.op_type, 1, *node.inputs, **stated)[0]
    made.value.type = ir.TensorType(_kind(node))
    return made


def _of_rows(tape: Tape, node: ir.Node, labels: Tensor, amounts: Tensor) -> Tensor:
    """A sum over rows that samples select: ONNX Runtime's own losses fail where there are none."""
    scores: Operand = node.inputs[0]
    if node.op_type == "SoftmaxCrossEntropyLoss":
        scores = tape.LogSoftmax(scores, axis=1)
    column = tape.ints(-1, 1)
    picked = tape.GatherElements(scores, tape.Reshape(labels, column), axis=1)
    shares = tape.Reshape(tape.Cast(amounts, to=int(_kind(node))), column)
    return tape.ReduceSum(-(picked * shares), keepdims=0)


def _of_selected(tape: Tape, node: ir.Node) -> Tensor | None:
    """A mean over samples; None where the samples do not decide their number."""
    chosen = node.inputs[0]
    assert chosen is not None  # noqa: S101 - a reduction has an operand
    if lengths(chosen) is not None or axes_of(node) is not None:
        return None
    keepdims = node.attributes.get_int("keepdims", 1)
    total = tape.ReduceSum(chosen, keepdims=keepdims)
    before = chosen.producer()
    while before is not None and before.op_type in (*_SAME_SHAPE, *VIEWS):
        before = producer(before.inputs[0])
    source = before.inputs[0] if before is not None and before.op_type == "GatherND" else None
    shape = None if source is None else lengths(source)
    if before is not None and shape is not None:
        # The same selection of ones: the samples' own numbers may need the whole network.
        ones = tape.constant(np.ones(shape, np.float32))
        batch_dims = before.attributes.get_int("batch_dims", 0)
        amounts = tape.GatherND(ones, *before.inputs[1:], batch_dims=batch_dims)
    else:
        amounts = tape.Equal(chosen, chosen)
    return _quotient(tape, node, total, amounts, keepdims=keepdims)


def _quotient(
    tape: Tape, mean: ir.Node, total: Tensor, amounts: Tensor, *, keepdims: int, least: int = 0
) -> Tensor:
    """A mean as a sum, divided by the sum of amounts of any type."""
    amount = tape.ReduceSum(tape.Cast(amounts, to=_DOUBLE), keepdims=keepdims)
    for one, kind in ((total, _kind(mean)), (amount, ir.DataType.DOUBLE)):
        one.value.type = ir.TensorType(kind)
        one.value.shape = ir.Shape(lengths(mean.outputs[0]) or ())
    if least:
        amount = tape.Max(amount, tape.scalar(least, ir.DataType.DOUBLE))
    return total / tape.Cast(amount, to=int(_kind(mean)))
