"""Clipping by norm: one factor per group of weights, with which updates multiply gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from popdist_onnx.optimizers.clip_norm import ClipNormMode, ClipNormSettings
from popdist_onnx.optimizers.scalars import CLIP_SCALING
from popdist_onnx.optimizers.weight_update import compute_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from popdist_onnx.optimizers.coefficients import Coefficient
    from popdist_onnx.optimizers.weight_update import Numbers


def clip_factors(numbers: Numbers, gradients: Mapping[str, ir.Value]) -> dict[str, Coefficient]:
    """Writes the factor of every group.

    The norm is one reduction per weight and some nodes on numbers; gradients themselves are
    multiplied by the update, together with its other factors.

    Args:
        numbers: The scalars of all updates, with their optimizer.
        gradients: The gradients that updates read, by weight.

    Returns:
        The factor by weight; weights that are in no group have none.
    """
    factors = {}
    for group in numbers.optimizer.getClipNormSettings():
        weights = (
            list(gradients)
            if group.mode is ClipNormMode.ClipAllWeights
            else [weight for weight in group.weightIds if weight in gradients]
        )
        if weights:
            factor = _factor(numbers, group, [gradients[weight] for weight in weights])
            factors.update(dict.fromkeys(weights, factor))
    return factors


def _factor(numbers: Numbers, group: ClipNormSettings, gradients: list[ir.Value]) -> Coefficient:
    tape = numbers.tape
    computed = [compute_type(one.dtype or ir.DataType.FLOAT) for one in gradients]
    wide = ir.DataType.DOUBLE if ir.DataType.DOUBLE in computed else ir.DataType.FLOAT
    table = numbers.table(wide)
    squares = []
    for gradient, dtype in zip(gradients, computed, strict=True):
        tensor = tape.wrap(gradient)
        if gradient.dtype != dtype:
            tensor = numbers.cast(tensor, dtype)
        squares.append(table.read(tape.ReduceSumSquare(tensor, keepdims=0)).operand())
    total = tape.Sum(*squares) if len(squares) > 1 else squares[0]
    norm = table.read(tape.Sqrt(total)) * numbers.scalar(CLIP_SCALING, None, wide)
    return group.maxNorm / norm.larger(group.maxNorm)
