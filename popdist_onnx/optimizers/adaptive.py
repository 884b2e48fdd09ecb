"""AdaGrad, RMSProp, centered RMSProp and AdaDelta.

With s = a / (ls * af) (and ``+ wd * w`` with L2Regularization)::

    v1 <- v1 + s**2                          (AdaGrad)
    v1 <- alpha * v1 + (1 - alpha) * s**2    (the others)
    v2 <- alpha * v2 + (1 - alpha) * s       (centered RMSProp)
    x   = s / (sqrt(v1) + eps)               (centered: sqrt(v1 - v2**2) + eps)
    x   = s * sqrt(v2 + eps) / sqrt(v1 + eps), v2 <- alpha * v2 + (1 - alpha) * x**2  (AdaDelta)
    v3 <- m * v3 + x                         (with momentum, else v3 = x)
    w  <- w - lr * (v3 + wd * w)             (wd here with Decay)

The TensorFlow variant of RMSProp has eps inside the root and starts v1 at 1; with momentum
``v3 <- m * v3 + lr * x`` and ``w <- w - (v3 + wd * w)``.

Formulas and names: PopART's optimizer reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from popdist_onnx.graph import names
from popdist_onnx.optimizers.hyperparameters import LOSS_SCALING, Hyperparameter, Scalar, plain
from popdist_onnx.optimizers.optimizer import Optimizer, by_weight, check_member, state_type
from popdist_onnx.optimizers.values import OptimizerSettingError
from popdist_onnx.types.enums import AdaptiveMode, WeightDecayMode
from popdist_onnx.types.tensor_info import DataType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from popdist_onnx.graph.tensor import Tensor
    from popdist_onnx.optimizers.coefficients import Coefficient
    from popdist_onnx.optimizers.weight_update import WeightUpdate


LEARNING_RATE = plain("learningRate", "learningRate")
WEIGHT_DECAY = plain("weightDecay", "weightDecay")
ALPHA = plain("adaptiveAlpha", "alpha")
MOMENTUM = plain("adaptiveMomentum", "momentum")
EPS = plain("adaptiveEps", "eps")
GRADIENT_SCALING = Scalar(
    "adaptiveGradientScaling", ("lossScaling",), lambda v, af: 1 / (v["lossScaling"] * af)
)


RMSPROP = (AdaptiveMode.RMSProp, AdaptiveMode.CenteredRMSProp)


class Adaptive(Optimizer):
    """AdaGrad, RMSProp, centered RMSProp or AdaDelta.

    Args:
        values: Settings by name, each a tuple of value and constness.
        mode: Which of them.
        weight_decay_mode: Whether weight decay acts on the weight or on the gradient.
        accum_type: Element type of gradient sums; UNDEFINED takes the weight's.
        accl1_type: Element type of the squared gradient's average; UNDEFINED takes the weight's.
        accl2_type: Element type of the gradient's, or squared update's, average.
        accl3_type: Element type of the momentum.
        rmsprop_tf_variant: Whether RMSProp is calculated as TensorFlow does.

    Raises:
        OptimizerSettingError: A setting is unknown or malformed.
        OptimizerValueError: A setting is out of range.
    """

    published: ClassVar[str] = "Adaptive"
    settings: ClassVar[tuple[Hyperparameter, ...]] = (
        Hyperparameter("learningRate", 0.01, "rate", "step length"),
        Hyperparameter("weightDecay", 0.0, "not negative", "share of the weight that decays"),
        Hyperparameter("alpha", 0.99, "not negative", "share of the averages that is kept"),
        Hyperparameter("momentum", 0.0, "not negative", "share of the last update that is kept"),
        Hyperparameter(
            "eps", 1e-6, "positive", "added to the root of the squared gradient's average"
        ),
        LOSS_SCALING,
    )

    def __init__(
        self,
        values: Mapping[str, tuple[float, bool]],
        mode: AdaptiveMode = AdaptiveMode.RMSProp,
        weight_decay_mode: WeightDecayMode = WeightDecayMode.Decay,
        accum_type: DataType | str = DataType.UNDEFINED,
        accl1_type: DataType | str = DataType.FLOAT,
        accl2_type: DataType | str = DataType.FLOAT,
        accl3_type: DataType | str = DataType.UNDEFINED,
        rmsprop_tf_variant: bool = False,
    ) -> None:
        super().__init__(values)
        check_member("mode", mode, AdaptiveMode)
        check_member("weight_decay_mode", weight_decay_mode, WeightDecayMode)
        if rmsprop_tf_variant and mode not in RMSPROP:
            raise OptimizerSettingError(
                "PD543",
                f"{mode.name} has no TensorFlow variant",
                value=rmsprop_tf_variant,
                accepted="rmsprop_tf_variant=True with RMSProp and CenteredRMSProp only",
            )
        self.mode = mode
        self.weight_decay_mode = weight_decay_mode
        self.accum_type = state_type("accum_type", accum_type)
        self.accl1_type = state_type("accl1_type", accl1_type)
        self.accl2_type = state_type("accl2_type", accl2_type)
        self.accl3_type = state_type("accl3_type", accl3_type)
        self.rmsprop_tf_variant = rmsprop_tf_variant

    def scalars(self) -> tuple[Scalar, ...]:
        """Every scalar that an update by this optimizer may read."""
        return LEARNING_RATE, WEIGHT_DECAY, ALPHA, MOMENTUM, EPS, GRADIENT_SCALING

    def write(self, update: WeightUpdate[Adaptive]) -> None:
        """Writes one weight's update as nodes."""
        adaptive(update)

    def form(self) -> dict[str, object]:
        """What decides the shape of the update beside the settings' constness, by name."""
        return {
            "mode": self.mode.name,
            "weight_decay_mode": self.weight_decay_mode.name,
            "accum_type": self.accum_type.name,
            "accl1_type": self.accl1_type.name,
            "accl2_type": self.accl2_type.name,
            "accl3_type": self.accl3_type.name,
            "rmsprop_tf_variant": self.rmsprop_tf_variant,
        }

    alphas = by_weight("alpha")
    """The share of the averages that is kept, by weight."""

    momentums = by_weight("momentum")
    """The share of the last update that is kept, by weight."""

    epss = by_weight("eps")
    """What is added to the root, by weight."""


# The update of AdaGrad, RMSProp, centered RMSProp and AdaDelta as nodes.


def adaptive(update: WeightUpdate[Adaptive]) -> None:
    """Writes one weight's update."""
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
