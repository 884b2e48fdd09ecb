"""The update of stochastic gradient descent as nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.graph import names
from popdist_onnx.optimizers.sgd import LEARNING_RATE_0, MOMENTUM_SCALARS, SGD, WEIGHT_DECAY_0
from popdist_onnx.types.enums import SGDAccumulatorAndMomentum

if TYPE_CHECKING:
    from popdist_onnx.graph.tensor import Tensor
    from popdist_onnx.optimizers.coefficients import Coefficient
    from popdist_onnx.optimizers.weight_update import WeightUpdate


def sgd(update: WeightUpdate[SGD]) -> None:
    """Writes one weight's update.

    Args:
        update: The weight.
    """
    if not update.optimizer.has_momentum(update.name):
        _without_momentum(update)
    elif update.optimizer.accumulatorAndMomentum is SGDAccumulatorAndMomentum.Combined:
        _combined(update)
    else:
        _separate(update)


def _without_momentum(update: WeightUpdate[SGD]) -> None:
    rate = update.scalar(LEARNING_RATE_0) * update.clip
    decayed = update.scalar(WEIGHT_DECAY_0).of(update.weight)
    update.finish(decayed - rate.of(update.gradient))


def _separate(update: WeightUpdate[SGD]) -> None:
    rate, decay, dampening, momentum = map(update.scalar, _scalars(update))
    velocity = update.state(names.ACCL1, update.optimizer.accl1_type)
    step = _plus(decay, update.weight, (dampening * update.clip).of(update.gradient))
    velocity = momentum.of(velocity) + step
    update.keep(names.ACCL1, velocity)
    if update.optimizer.nesterov:
        velocity = momentum.of(velocity) + step
    update.finish(update.weight - rate.of(velocity))


def _combined(update: WeightUpdate[SGD]) -> None:
    rate, decay, dampening, momentum = map(update.scalar, _scalars(update))
    first = update.current(_scalars(update)[1])
    velocity = update.state(
        names.ACCL,
        update.optimizer.accl1_type,
        first * update.first_weight() if first else 0.0,
    )
    gradient = (dampening * update.clip).of(update.gradient)
    velocity = velocity + gradient
    direction = velocity
    if update.optimizer.nesterov:
        direction = momentum.of(velocity) + _plus(decay, update.weight, gradient)
    weight = update.weight - rate.of(direction)
    update.keep(names.ACCL, _plus(decay, weight, momentum.of(velocity)))
    update.finish(weight)


def _scalars(update: WeightUpdate[SGD]) -> tuple:  # type: ignore[type-arg]
    return MOMENTUM_SCALARS[update.optimizer.accumulatorAndMomentum]


def _plus(decay: Coefficient, weight: Tensor, gradient: Tensor) -> Tensor:
    return gradient if decay.zero else gradient + decay.of(weight)
