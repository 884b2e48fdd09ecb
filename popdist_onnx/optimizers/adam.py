"""The Adam family: Adam, AdamW, AdaMax and LAMB, with and without bias correction.

With s = a / (ls * af) (and ``+ wd * w`` with L2Regularization), and t counting updates from 1::

    m <- b1 * m + (1 - b1) * s
    v <- b2 * v + (1 - b2) * s**2        (AdaMax: max(b2 * v, |s|))
    x  = (m / (1 - b1**t)) / (sqrt(v / (1 - b2**t)) + eps)
    w <- w - lr * (x + wd * w)           (wd here with Decay)

AdamNoBias and LambNoBias leave the divisions by ``1 - b**t`` out; AdaMax divides by ``v + eps``;
LAMB multiplies the step by ``min(|w|, maxWeightNorm) / |x + wd * w|``, or 1 where a norm is 0.

Formulas and names: PopART's optimizer reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from popdist_onnx.graph import names
from popdist_onnx.optimizers.hyperparameters import LOSS_SCALING, Hyperparameter, Scalar, plain
from popdist_onnx.optimizers.optimizer import Optimizer, by_weight, check_member, state_type
from popdist_onnx.types.enums import AdamMode, WeightDecayMode
from popdist_onnx.types.tensor_info import DataType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from popdist_onnx.graph.tensor import Tensor
    from popdist_onnx.optimizers.coefficients import Coefficient
    from popdist_onnx.optimizers.values import ClipNormSettings
    from popdist_onnx.optimizers.weight_update import WeightUpdate


LEARNING_RATE = plain("learningRate", "learningRate")
WEIGHT_DECAY = plain("weightDecay", "weightDecay")
BETA_1 = plain("adamBeta1", "beta1")
BETA_2 = plain("adamBeta2", "beta2")
EPS = plain("adamEps", "eps")
MAX_WEIGHT_NORM = plain("maxWeightNorm", "maxWeightNorm")
GRADIENT_SCALING = Scalar(
    "adamGradientScaling", ("lossScaling",), lambda v, af: 1 / (v["lossScaling"] * af)
)

# With scaled states, the loss scale stays in the gradient, and what is compared with it grows.
SCALED_EPS = Scalar("adamEps", ("eps", "lossScaling"), lambda v, _: v["eps"] * v["lossScaling"])
SCALED_WEIGHT_DECAY = Scalar(
    "weightDecay",
    ("weightDecay", "lossScaling"),
    lambda v, _: v["weightDecay"] * v["lossScaling"],
)
MEAN_SCALING = Scalar("adamGradientScaling", (), lambda _, af: 1 / af)

BIAS_CORRECTED = (AdamMode.Adam, AdamMode.AdaMax, AdamMode.Lamb)
LAMB = (AdamMode.Lamb, AdamMode.LambNoBias)


class Adam(Optimizer):
    """Adam and its relatives.

    Args:
        values: Settings by name, each a tuple of value and constness.
        mode: The member of the family.
        weight_decay_mode: Whether weight decay acts on the weight (AdamW) or on the gradient.
        accum_type: Element type of gradient sums; UNDEFINED takes the weight's.
        accl1_type: Element type of the first moment; UNDEFINED takes the weight's.
        accl2_type: Element type of the second moment; UNDEFINED takes the weight's.
        clip_norm_settings: Groups of weights whose gradients are clipped.
        scaled_optimizer_state: Whether moments keep the loss scale.

    Raises:
        OptimizerSettingError: A setting is unknown or malformed.
        OptimizerValueError: A setting is out of range.
    """

    published: ClassVar[str] = "Adam"
    settings: ClassVar[tuple[Hyperparameter, ...]] = (
        Hyperparameter("learningRate", 0.1, "rate", "step length"),
        Hyperparameter("weightDecay", 0.0, "not negative", "share of the weight that decays"),
        Hyperparameter("beta1", 0.9, "not negative", "share of the first moment that is kept"),
        Hyperparameter("beta2", 0.999, "not negative", "share of the second moment that is kept"),
        Hyperparameter("eps", 1e-6, "positive", "added to the root of the second moment"),
        LOSS_SCALING,
        Hyperparameter(
            "maxWeightNorm", 10.0, "not negative", "largest norm in LAMB's ratio", prefixed=False
        ),
    )

    def __init__(
        self,
        values: Mapping[str, tuple[float, bool]],
        mode: AdamMode = AdamMode.Adam,
        weight_decay_mode: WeightDecayMode = WeightDecayMode.Decay,
        accum_type: DataType | str = DataType.UNDEFINED,
        accl1_type: DataType | str = DataType.FLOAT,
        accl2_type: DataType | str = DataType.FLOAT,
        clip_norm_settings: Sequence[ClipNormSettings] = (),
        scaled_optimizer_state: bool = False,
    ) -> None:
        super().__init__(values, clip_norm_settings)
        check_member("mode", mode, AdamMode)
        check_member("weight_decay_mode", weight_decay_mode, WeightDecayMode)
        self.mode = mode
        self.weight_decay_mode = weight_decay_mode
        self.accum_type = state_type("accum_type", accum_type)
        self.accl1_type = state_type("accl1_type", accl1_type)
        self.accl2_type = state_type("accl2_type", accl2_type)
        self.scaled_optimizer_state = scaled_optimizer_state

    @property
    def eps(self) -> Scalar:
        """What is added to the root of the second moment."""
        return SCALED_EPS if self.scaled_optimizer_state else EPS

    @property
    def weight_decay(self) -> Scalar:
        """The weight decay; in the gradient's scale where it is added to a scaled gradient."""
        in_gradient = self.weight_decay_mode is WeightDecayMode.L2Regularization
        return SCALED_WEIGHT_DECAY if self.scaled_optimizer_state and in_gradient else WEIGHT_DECAY

    @property
    def gradient_scaling(self) -> Scalar:
        """The factor of the gradient sum."""
        return MEAN_SCALING if self.scaled_optimizer_state else GRADIENT_SCALING

    def scalars(self) -> tuple[Scalar, ...]:
        """Every scalar that an update by this optimizer may read."""
        return (
            LEARNING_RATE,
            self.weight_decay,
            BETA_1,
            BETA_2,
            self.eps,
            MAX_WEIGHT_NORM,
            self.gradient_scaling,
        )

    def state_factors(self, before: Optimizer) -> dict[str, float]:
        """What states are multiplied by when this optimizer takes the place of another one.

        Args:
            before: The optimizer that the states come from.

        Returns:
            The factor by prefix of the state; empty where nothing changes.
        """
        ratio = self.getLossScalingVal() / before.getLossScalingVal()
        if not self.scaled_optimizer_state or ratio == 1:
            return {}
        return {
            names.ACCL1: ratio,
            names.ACCL2: ratio if self.mode is AdamMode.AdaMax else ratio**2,
        }

    def write(self, update: WeightUpdate[Adam]) -> None:
        """Writes one weight's update as nodes."""
        adam(update)

    def form(self) -> dict[str, object]:
        """What decides the shape of the update beside the settings' constness, by name."""
        return {
            "mode": self.mode.name,
            "weight_decay_mode": self.weight_decay_mode.name,
            "accum_type": self.accum_type.name,
            "accl1_type": self.accl1_type.name,
            "accl2_type": self.accl2_type.name,
            "scaled_optimizer_state": self.scaled_optimizer_state,
        }

    beta1s = by_weight("beta1")
    """The share of the first moment that is kept, by weight."""

    beta2s = by_weight("beta2")
    """The share of the second moment that is kept, by weight."""

    epss = by_weight("eps")
    """What is added to the root of the second moment, by weight."""

    maxWeightNorms = by_weight("maxWeightNorm")
    """The largest norm in LAMB's ratio, by weight."""

    def getWeightDecayMode(self) -> WeightDecayMode:
        """Whether weight decay acts on the weight or on the gradient.

        Returns:
            One of `WeightDecayMode`.
        """
        return self.weight_decay_mode

    def useScaledOptimizerState(self) -> bool:
        """Whether moments keep the loss scale.

        Returns:
            What the optimizer was made with.
        """
        return self.scaled_optimizer_state


# The update of the Adam family as nodes.
#
# The factors of bias correction and loss scaling meet in numbers without dimensions, which all
# weights share; per weight stay the operations that read a whole tensor.


def adam(update: WeightUpdate[Adam]) -> None:
    """Writes one weight's update."""
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
