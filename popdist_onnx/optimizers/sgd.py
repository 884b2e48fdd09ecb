"""Stochastic gradient descent, with and without momentum.

With gradient a (summed over micro-batches and replicas), loss scaling ls, and af micro-batches in a
mean (1 with Sum):

- without momentum: ``w <- wdsf * w - slr * a``;
- Separate: ``v <- smm * v + swd * w + dpsf * a``, then ``w <- w - slr * v``;
- Combined: ``v <- v + dpsf * a``, ``w <- w - slr * v``, then ``v <- smm * v + swd * w``, starting
  from ``swd * w``. What is kept is one step further, what the weights become is the same.

Formulas and names: PopART's optimizer reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from popdist_onnx.graph import names
from popdist_onnx.optimizers.hyperparameters import LOSS_SCALING, Hyperparameter, Scalar
from popdist_onnx.optimizers.optimizer import Optimizer, by_weight, check_member, state_type
from popdist_onnx.optimizers.values import OptimizerValueError
from popdist_onnx.types.enums import SGDAccumulatorAndMomentum
from popdist_onnx.types.tensor_info import DataType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from popdist_onnx.graph.tensor import Tensor
    from popdist_onnx.optimizers.coefficients import Coefficient
    from popdist_onnx.optimizers.values import ClipNormSettings
    from popdist_onnx.optimizers.weight_update import WeightUpdate


LEARNING_RATE_0 = Scalar(
    "scaledLearningRate0",
    ("learningRate", "dampening", "lossScaling"),
    lambda v, af: v["learningRate"] * (1 - v["dampening"]) / (v["lossScaling"] * af),
)
WEIGHT_DECAY_0 = Scalar(
    "weightDecayScaleFactor0",
    ("learningRate", "dampening", "weightDecay"),
    lambda v, _: 1 - v["learningRate"] * (1 - v["dampening"]) * v["weightDecay"],
    factor="weightDecay",
)


def _momentum_scalars(kind: int) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    return (
        Scalar(
            f"scaledLearningRate{kind}",
            ("learningRate", "velocityScaling"),
            lambda v, _: v["learningRate"] / v["velocityScaling"],
        ),
        Scalar(
            "scaledWeightDecay1",
            ("dampening", "weightDecay", "velocityScaling"),
            lambda v, _: (1 - v["dampening"]) * v["weightDecay"] * v["velocityScaling"],
            factor="weightDecay",
        ),
        Scalar(
            f"dampeningScaleFactor{kind}",
            ("dampening", "velocityScaling", "lossScaling"),
            lambda v, af: (1 - v["dampening"]) * v["velocityScaling"] / (v["lossScaling"] * af),
        ),
        Scalar(f"scaledMomentum{kind}", ("momentum",), lambda v, _: v["momentum"]),
    )


MOMENTUM_SCALARS = {
    SGDAccumulatorAndMomentum.Combined: _momentum_scalars(1),
    SGDAccumulatorAndMomentum.Separate: _momentum_scalars(2),
}
"""Learning rate, weight decay, dampening and momentum, by kind of state."""


class SGD(Optimizer):
    """Stochastic gradient descent.

    Args:
        values: Settings by name, each a tuple of value and constness.
        clip_norm_settings: Groups of weights whose gradients are clipped.
        accumulatorAndMomentum: How the velocity is kept.
        accumType: Element type of gradient sums; UNDEFINED takes the weight's.
        accl1Type: Element type of the velocity; UNDEFINED takes the weight's.

    Raises:
        OptimizerSettingError: A setting is unknown or malformed.
        OptimizerValueError: A setting is out of range, or Nesterov momentum lacks a momentum or
            has dampening.
    """

    published: ClassVar[str] = "SGD"
    settings: ClassVar[tuple[Hyperparameter, ...]] = (
        Hyperparameter("learningRate", 0.1, "rate", "step length"),
        Hyperparameter(
            "weightDecay", 0.0, "not negative", "share of the weight added to its gradient"
        ),
        Hyperparameter("momentum", 0.0, "not negative", "share of the velocity that is kept"),
        Hyperparameter("dampening", 0.0, "not negative", "share of the gradient that is left out"),
        Hyperparameter("velocityScaling", 1.0, "positive", "factor at which the velocity is kept"),
        Hyperparameter(
            "nesterov",
            0.0,
            "switch",
            "look ahead along the velocity (releases of PopART after 2.2)",
            per_weight=False,
            prefixed=False,
        ),
        LOSS_SCALING,
    )

    def __init__(
        self,
        values: Mapping[str, tuple[float, bool]],
        clip_norm_settings: Sequence[ClipNormSettings] = (),
        accumulatorAndMomentum: SGDAccumulatorAndMomentum = SGDAccumulatorAndMomentum.Combined,
        accumType: DataType | str = DataType.UNDEFINED,
        accl1Type: DataType | str = DataType.UNDEFINED,
    ) -> None:
        super().__init__(_with_plain_switch(values), clip_norm_settings)
        check_member("accumulatorAndMomentum", accumulatorAndMomentum, SGDAccumulatorAndMomentum)
        self.accumulatorAndMomentum = accumulatorAndMomentum
        self.accum_type = state_type("accumType", accumType)
        self.accl1_type = state_type("accl1Type", accl1Type)
        self._check_nesterov(None)

    def insertSpecific(self, weightId: str, values: Mapping[str, tuple[float, bool]]) -> None:
        """Gives one weight settings of its own.

        Args:
            weightId: The weight's tensor id.
            values: Settings by their plain names, as tuples of value and constness.

        Raises:
            OptimizerSettingError: A name is unknown or cannot differ by weight, or a value is
                not a tuple.
            OptimizerValueError: A value is out of range.
        """
        before = dict(self._specifics.get(weightId, {}))
        super().insertSpecific(weightId, values)
        try:
            self._check_nesterov(weightId)
        except OptimizerValueError:
            self._specifics[weightId] = before
            raise

    @property
    def nesterov(self) -> bool:
        """Whether updates look ahead along the velocity."""
        return bool(self.value("nesterov").val())

    def scalars(self) -> tuple[Scalar, ...]:
        """Every scalar that an update by this optimizer may read."""
        return (
            LEARNING_RATE_0,
            WEIGHT_DECAY_0,
            *MOMENTUM_SCALARS[self.accumulatorAndMomentum],
        )

    def write(self, update: WeightUpdate[SGD]) -> None:
        """Writes one weight's update as nodes."""
        sgd(update)

    def form(self) -> dict[str, object]:
        """What decides the shape of the update beside the settings' constness, by name."""
        return {
            "accumulatorAndMomentum": self.accumulatorAndMomentum.name,
            "accumType": self.accum_type.name,
            "accl1Type": self.accl1_type.name,
        }

    momentums = by_weight("momentum")
    """The momentum by weight."""

    dampenings = by_weight("dampening")
    """The dampening by weight."""

    velocityScalings = by_weight("velocityScaling")
    """The velocity scaling by weight."""

    def getSGDAccumulatorAndMomentum(self) -> SGDAccumulatorAndMomentum:
        """How the velocity is kept.

        Returns:
            One of `SGDAccumulatorAndMomentum`.
        """
        return self.accumulatorAndMomentum

    def _check_nesterov(self, weight: str | None) -> None:
        dampening = self.value("dampening", weight)
        fits = self.has_momentum(weight) and dampening.isConst() and dampening.val() == 0
        if self.nesterov and not fits:
            raise OptimizerValueError(
                "PD543",
                "Nesterov momentum needs a momentum and no dampening in SGD",
                value={k: self.value(k, weight).val() for k in ("momentum", "dampening")},
                accepted='for example {"defaultMomentum": (0.9, True), "nesterov": (True, True)}',
            )


def _with_plain_switch(
    values: Mapping[str, tuple[float, bool]],
) -> Mapping[str, tuple[float, bool]]:
    """Reads the published (True, True) of the switch as the number 1."""
    given = values.get("nesterov") if hasattr(values, "get") else None
    if isinstance(given, tuple) and given and isinstance(given[0], bool):
        return {**values, "nesterov": (float(given[0]), *given[1:])}
    return values


class ConstSGD(SGD):
    """Stochastic gradient descent without momentum whose numbers never change.

    Args:
        learning_rate: Step length.
        weight_decay: Share of the weight added to its gradient.
        loss_scaling: Factor of the loss in backward passes; updates divide by it.
        clip_norm_settings: Groups of weights whose gradients are clipped.
    """

    def __init__(
        self,
        learning_rate: float,
        weight_decay: float = 0.0,
        loss_scaling: float = 1.0,
        clip_norm_settings: Sequence[ClipNormSettings] = (),
    ) -> None:
        super().__init__(
            {
                "defaultLearningRate": (learning_rate, True),
                "defaultWeightDecay": (weight_decay, True),
                "lossScaling": (loss_scaling, True),
            },
            clip_norm_settings,
        )


# The update of stochastic gradient descent as nodes.


def sgd(update: WeightUpdate[SGD]) -> None:
    """Writes one weight's update."""
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
