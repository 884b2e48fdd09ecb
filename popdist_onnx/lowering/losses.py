"""Losses: rows or elements, and how they are reduced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from popdist_onnx.lowering.registry import Operation, lowering

if TYPE_CHECKING:
    from popdist_onnx.graph.tensor import Operand, Tensor

SMALLEST_PROBABILITY = {ir.DataType.FLOAT16: 6.104e-5}
"""What `nll` takes for smaller probabilities, by type; see `smallest_probability`."""


def smallest_probability(dtype: ir.DataType) -> float:
    """What the negative log likelihood takes for smaller probabilities (PopART's value).

    Args:
        dtype: The probabilities' type.

    Returns:
        The bound.
    """
    return SMALLEST_PROBABILITY.get(dtype, 1e-7)


def reduced(op: Operation, elements: Tensor, count: Operand = None) -> Tensor:
    """Applies the attribute ``reduction``: ``Sum``, ``Mean`` or ``None``.

    Args:
        op: The loss.
        elements: One value per row or element.
        count: What a mean divides by; None for the number of elements.

    Returns:
        The loss.

    Raises:
        ValueRangeError: There is no such reduction.
    """
    match op.text("reduction", "Mean"):
        case "Sum":
            return op.tape.ReduceSum(elements, keepdims=0)
        case "Mean" if count is None:
            return op.tape.ReduceMean(elements, keepdims=0)
        case "Mean":
            return op.tape.ReduceSum(elements, keepdims=0) / count
        case "None" | "NoReduction":
            return elements
        case other:
            raise op.misfit("has no such reduction", value=other, accepted="Sum, Mean, None")


@lowering("Nll")
def nll(op: Operation) -> Tensor:
    """``-ln max(p[label], eps)``, or ``-x[label]`` for log probabilities."""
    tape = op.tape
    probabilities, labels = op.inputs
    require_labels(op, probabilities, labels)
    classes = probabilities.dims[-1] if probabilities.dims else None
    index = tape.Cast(labels, to=ir.DataType.INT64)
    ignored = None
    if "ignoreIndex" in op.node.attributes:
        ignored = tape.Equal(index, op.number("ignoreIndex", 0))
        index = tape.Where(ignored, tape.scalar(0), index)
    if isinstance(classes, int):
        # GatherElements counts negative indices from the end; a negative label is a mistake,
        # which an index beyond the end turns into an error.
        index = tape.Where(index < 0, tape.scalar(classes), index)
    picked = tape.GatherElements(probabilities, tape.Unsqueeze(index, [-1]), axis=-1)
    rows = tape.Squeeze(picked, [-1])
    if not op.number("inputIsLogProbability", 0):
        rows = tape.Log(tape.Max(rows, smallest_probability(rows.dtype)))
    rows = -rows
    if ignored is None:
        return reduced(op, rows)
    counted = tape.ReduceSum(tape.Cast(tape.Not(ignored), to=rows.dtype), keepdims=0)
    return reduced(op, tape.Where(ignored, tape.scalar(0, rows.dtype), rows), tape.Max(counted, 1))


def require_labels(op: Operation, probabilities: Tensor, labels: Tensor) -> None:
    """Checks that labels are whole numbers, one per row of probabilities.

    Args:
        op: The loss.
        probabilities: Its first input.
        labels: Its second.

    Raises:
        ValueRangeError: They do not fit.
    """
    if labels.dtype.is_floating_point():
        raise op.misfit("takes labels of a fixed-point type", value=labels.dtype.name)
    if probabilities.dims is None or labels.dims is None:
        return
    rows = probabilities.dims[:-1]
    fits = len(rows) == len(labels.dims) and all(
        row == label or not (isinstance(row, int) and isinstance(label, int))
        for row, label in zip(rows, labels.dims, strict=True)
    )
    if not fits:
        raise op.misfit(
            "takes one label per row of probabilities",
            value={"probabilities": probabilities.dims, "labels": labels.dims},
            accepted=f"labels of shape {list(rows)}",
        )


@lowering("L1")
def l1(op: Operation) -> Tensor:
    """``lambda * |x|``."""
    (x,) = op.inputs
    if x.dims == ():
        raise op.misfit("takes a tensor with at least one dimension")
    return reduced(op, op.tape.Abs(x) * op.real("lambda", 1.0))


@lowering("IdentityLoss")
def identity_loss(op: Operation) -> Tensor:
    """The input itself, reduced."""
    (x,) = op.inputs
    return reduced(op, x)
