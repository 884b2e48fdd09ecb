"""Losses over classes. A softmax that only feeds the loss is differentiated together with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from popdist_onnx.gradients.registry import At, Edges, gradient
from popdist_onnx.graph import shape_ops

if TYPE_CHECKING:
    import onnx_ir as ir

    from popdist_onnx.graph.tensor import Tensor

_FLOAT, _INT64 = 1, 7


@gradient("SoftmaxCrossEntropyLoss", inputs=(0,))
def _softmax_cross_entropy(at: At) -> Tensor:
    """(softmax - onehot) times each row's share of the gradient."""
    log_probabilities = at.output(1) if _has_output(at, 1) else None
    probabilities = (
        at.tape.Softmax(at.x, axis=1)
        if log_probabilities is None
        else at.tape.Exp(log_probabilities)
    )
    edge = (probabilities - _one_hot(at, at.x)) * _share(at, at.x)
    if log_probabilities is not None and at.gradients[1] is not None:
        g = at.g_of(1)
        edge += g - probabilities * at.tape.ReduceSum(g, [1], keepdims=1)
    return edge


@gradient("NegativeLogLikelihoodLoss", inputs=(0,))
def _negative_log_likelihood(at: At) -> Edges:
    """-onehot times each row's share; through a LogSoftmax: softmax - onehot."""
    producer = at.x.value.producer()
    if producer is not None and _is_fusible(at, producer, "LogSoftmax"):
        scores = at.tape.wrap(producer.inputs[0])  # type: ignore[arg-type]
        edge = (at.tape.Exp(at.x) - _one_hot(at, at.x)) * _share(at, at.x)
        return {scores.value: edge}
    return -(_one_hot(at, at.x) * _share(at, at.x))


def _is_fusible(at: At, producer: ir.Node, op_type: str) -> bool:
    axis = producer.attributes.get_int("axis", -1) % at.x.rank
    return producer.op_type == op_type and axis == 1 and at.x.value not in at.kept


def _has_output(at: At, index: int) -> bool:
    return index < len(at.node.outputs) and bool(at.node.outputs[index].name)


def _one_hot(at: At, scores: Tensor) -> Tensor:
    return one_hot(at.input(1), scores, axis=1)


def one_hot(labels: Tensor, scores: Tensor, axis: int) -> Tensor:
    """One at each label's class, zero elsewhere; labels out of range give zeros only.

    Args:
        labels: Class numbers of any whole-number type.
        scores: What has one element per class.
        axis: The axis of classes.

    Returns:
        A tensor of the scores' shape and type.
    """
    tape = scores.tape
    classes = scores.lengths[axis]
    depth = tape.ints(classes) if isinstance(classes, int) else _length(scores, axis)
    # ONNX Runtime has this kernel for int64 labels and float32 values.
    index = labels if labels.dtype.value == _INT64 else tape.Cast(labels, to=_INT64)
    made = tape.OneHot(index, depth, tape.constant(np.asarray([0, 1], np.float32)), axis=axis)
    return made if scores.dtype.value == _FLOAT else tape.Cast(made, to=scores.dtype.value)


def _length(tensor: Tensor, axis: int) -> Tensor:
    axis %= tensor.rank
    return tensor.tape.Shape(tensor, start=axis, end=axis + 1)


def _share(at: At, scores: Tensor) -> Tensor:
    """The gradient of each row: weight, ignored rows and the reduction's divisor."""
    tape, labels, weights = at.tape, at.input(1), at.optional(2)
    reduction = at.get("reduction", "mean")
    ignored = at.node.attributes.get("ignore_index")
    row = None
    if weights is not None or ignored is not None:
        row = _row_weights(at, scores, labels, weights, None if ignored is None else ignored.value)
    g = at.g
    if reduction == "none":
        share = tape.Unsqueeze(g, [1])
        return share if row is None else share * tape.Unsqueeze(row, [1])
    if row is None:
        return g / shape_ops.count(labels) if reduction == "mean" else g
    if reduction == "mean":
        g = g / tape.ReduceSum(row, keepdims=0)
    return tape.Unsqueeze(row, [1]) * g


def _row_weights(
    at: At, scores: Tensor, labels: Tensor, weights: Tensor | None, ignored: int | None
) -> Tensor:
    tape = at.tape
    if ignored is None:
        return tape.Gather(weights, labels, axis=0)
    counted = tape.Not(tape.Equal(labels, np.asarray(ignored, labels.dtype.numpy())))
    kept = tape.Cast(counted, to=scores.dtype.value)
    if weights is None:
        return kept
    zero = np.asarray(0, labels.dtype.numpy())
    return kept * tape.Gather(weights, tape.Where(counted, labels, zero), axis=0)
