"""Softmax and its logarithm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.gradients.registry import At, gradient

if TYPE_CHECKING:
    from popdist_onnx.graph.tensor import Tensor


@gradient("Softmax")
def _softmax(at: At) -> Tensor:
    weighted = at.g * at.y
    total = at.tape.ReduceSum(weighted, [at.get("axis", -1)], keepdims=1)
    return weighted - at.y * total


@gradient("LogSoftmax")
def _log_softmax(at: At) -> Tensor:
    total = at.tape.ReduceSum(at.g, [at.get("axis", -1)], keepdims=1)
    return at.g - at.tape.Exp(at.y) * total


@gradient("LpNormalization")
def _lp_normalization(at: At) -> Tensor:
    """Y = x / n; the norm n is 0 only where x is, and there y is 0 as well."""
    tape, axis = at.tape, [at.get("axis", -1)]
    if at.get("p", 2) == 1:
        norm, slope = tape.ReduceL1(at.x, axis), tape.Sign(at.x)
    else:
        norm, slope = tape.ReduceL2(at.x, axis), at.y
    one = tape.scalar(1, at.x.dtype)
    safe = tape.Where(tape.Equal(norm, 0.0), one, norm)
    return (at.g - slope * tape.ReduceSum(at.g * at.y, axis, keepdims=1)) / safe
