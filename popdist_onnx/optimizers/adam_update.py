"""The update of the Adam family as nodes.

The factors of bias correction and loss scaling meet in numbers without dimensions, which all
weights share; per weight stay the operations that read a whole tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.graph import names
from popdist_onnx.optimizers.adam import (
    BETA_1,
    BETA_2,
    BIAS_CORRECTED,
    LAMB,
    LEARNING_RATE,
    MAX_WEIGHT_NORM,
    Adam,
)
from popdist_onnx.types.enums import AdamMode, WeightDecayMode

if TYPE_CHECKING:
    from popdist_onnx.graph.tensor import Tensor
    from popdist_onnx.optimizers.coefficients import Coefficient
    from popdist_onnx.optimizers.weight_update import WeightUpdate


def adam(update: WeightUpdate[Adam]) -> None:
    """Writes one weight's update.

    Args:
        update: The weight.
    """
    optimizer = update.optimizer
    beta1, beta2 = update.scalar(BETA_1), update.scalar(BETA_2)
    decay = update.scalar(optimizer.weight_decay)
    decays_weight = optimizer.weight_decay_mode is WeightDecayMode.Decay

    gradient, scale = update.gradient, update.scalar(optimizer.gradient_scaling) * update.clip
    if not decays_weight and not decay.zero:
        gradient = scale.of(gradient) + decay.of(update.weight)
        scale = update.table.known(1)

    first = update.state(names.ACCL1, optimizer.accl1_type)
    second = update.state(names.ACCL2, optimizer.accl2_type)
    first = beta1.of(first) + ((1 - beta1) * scale).of(gradient)
    if optimizer.mode is AdamMode.AdaMax:
        second = update.tape.Max(beta2.of(second), update.tape.Abs(scale.of(gradient)))
    else:
        second = beta2.of(second) + ((1 - beta2) * (scale * scale)).of(gradient * gradient)
    update.keep(names.ACCL1, first)
    update.keep(names.ACCL2, second)

    factor, eps = _corrections(update, beta1, beta2)
    root = second if optimizer.mode is AdamMode.AdaMax else update.tape.Sqrt(second)
    direction = first / (root + eps.operand())
    rate = update.scalar(LEARNING_RATE)
    if optimizer.mode in LAMB:
        _lamb(update, factor.of(direction), rate, decay if decays_weight else None)
        return
    weight = (1 - rate * decay).of(update.weight) if decays_weight else update.weight
    update.finish(weight - (rate * factor).of(direction))


def _corrections(
    update: WeightUpdate[Adam], beta1: Coefficient, beta2: Coefficient
) -> tuple[Coefficient, Coefficient]:
    """What corrects the bias of ``m / (sqrt(v) + eps)``: a factor of it, and its eps.

    ``(m / c1) / (sqrt(v / c2) + eps)`` is ``(m / (sqrt(v) + eps * r)) * r / c1`` with r the root of
    c2, so that no whole tensor is corrected. Powers are taken in float64: in float32, ``1 - b**t``
    of the first updates has three correct digits.
    """
    eps = update.scalar(update.optimizer.eps)
    if update.optimizer.mode not in BIAS_CORRECTED:
        return update.table.known(1), eps
    count = update.count()
    correction1 = 1 - count.table.convert(beta1) ** count
    if update.optimizer.mode is AdamMode.AdaMax:
        return update.table.convert(1 / correction1), eps
    root2 = (1 - count.table.convert(beta2) ** count).sqrt()
    corrected_eps = count.table.convert(eps) * root2
    return update.table.convert(root2 / correction1), update.table.convert(corrected_eps)


def _lamb(
    update: WeightUpdate[Adam], direction: Tensor, rate: Coefficient, decay: Coefficient | None
) -> None:
    if decay is not None and not decay.zero:
        direction = direction + decay.of(update.weight)
    tape = update.tape
    weight_norm = tape.Sqrt(tape.ReduceSumSquare(update.weight, keepdims=0))
    direction_norm = tape.Sqrt(tape.ReduceSumSquare(direction, keepdims=0))
    limited = tape.Min(weight_norm, update.scalar(MAX_WEIGHT_NORM).operand())
    both = tape.And(weight_norm > 0.0, direction_norm > 0.0)
    ratio = tape.Where(both, limited / direction_norm, update.table.known(1).operand())
    update.finish(update.weight - (update.table.read(ratio) * rate).of(direction))
