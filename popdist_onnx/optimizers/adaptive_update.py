"""The update of AdaGrad, RMSProp, centered RMSProp and AdaDelta as nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.graph import names
from popdist_onnx.optimizers.adaptive import (
    ALPHA,
    EPS,
    GRADIENT_SCALING,
    LEARNING_RATE,
    MOMENTUM,
    WEIGHT_DECAY,
    Adaptive,
)
from popdist_onnx.types.enums import AdaptiveMode, WeightDecayMode

if TYPE_CHECKING:
    from popdist_onnx.graph.tensor import Tensor
    from popdist_onnx.optimizers.coefficients import Coefficient
    from popdist_onnx.optimizers.weight_update import WeightUpdate


def adaptive(update: WeightUpdate[Adaptive]) -> None:
    """Writes one weight's update.

    Args:
        update: The weight.
    """
    optimizer = update.optimizer
    decay = update.scalar(WEIGHT_DECAY)
    decays_weight = optimizer.weight_decay_mode is WeightDecayMode.Decay and not decay.zero
    gradient = (update.scalar(GRADIENT_SCALING) * update.clip).of(update.gradient)
    if optimizer.weight_decay_mode is WeightDecayMode.L2Regularization and not decay.zero:
        gradient = gradient + decay.of(update.weight)

    squares = _squares(update, gradient)
    direction = _direction(update, gradient, squares)
    rate = update.scalar(LEARNING_RATE)
    if not optimizer.has_momentum(update.name):
        weight = (1 - rate * decay).of(update.weight) if decays_weight else update.weight
        update.finish(weight - rate.of(direction))
        return

    kept = update.scalar(MOMENTUM).of(update.state(names.ACCL3, optimizer.accl3_type))
    step = kept + (rate.of(direction) if optimizer.rmsprop_tf_variant else direction)
    update.keep(names.ACCL3, step)
    rate = update.table.known(1) if optimizer.rmsprop_tf_variant else rate
    weight = (1 - rate * decay).of(update.weight) if decays_weight else update.weight
    update.finish(weight - rate.of(step))


def _squares(update: WeightUpdate[Adaptive], gradient: Tensor) -> Tensor:
    start = 1.0 if update.optimizer.rmsprop_tf_variant else 0.0
    squares = update.state(names.ACCL1, update.optimizer.accl1_type, start)
    if update.optimizer.mode is AdaptiveMode.AdaGrad:
        squares = squares + gradient * gradient
    else:
        squares = _average(update.scalar(ALPHA), squares, gradient * gradient)
    update.keep(names.ACCL1, squares)
    return squares


def _direction(update: WeightUpdate[Adaptive], gradient: Tensor, squares: Tensor) -> Tensor:
    tape, optimizer = update.tape, update.optimizer
    alpha, eps = update.scalar(ALPHA), update.scalar(EPS).operand()
    if optimizer.mode is AdaptiveMode.AdaDelta:
        moved = update.state(names.ACCL2, optimizer.accl2_type)
        direction = gradient * tape.Sqrt((moved + eps) / (squares + eps))
        update.keep(names.ACCL2, _average(alpha, moved, direction * direction))
        return direction
    if optimizer.mode is AdaptiveMode.CenteredRMSProp:
        mean = _average(alpha, update.state(names.ACCL2, optimizer.accl2_type), gradient)
        update.keep(names.ACCL2, mean)
        # Rounding may take it below 0, where the root of the sum would be no number.
        squares = tape.Max(squares - mean * mean, 0.0)
    if optimizer.rmsprop_tf_variant:
        return gradient / tape.Sqrt(squares + eps)
    return gradient / (tape.Sqrt(squares) + eps)


def _average(alpha: Coefficient, before: Tensor, now: Tensor) -> Tensor:
    return alpha.of(before) + (1 - alpha).of(now)
