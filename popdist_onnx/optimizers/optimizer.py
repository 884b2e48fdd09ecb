"""What all optimizers are: settings with per-weight values, scalars made of them, states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from popdist_onnx.optimizers.arguments import checked_clips
from popdist_onnx.optimizers.errors import OptimizerReplacementError, OptimizerSettingError
from popdist_onnx.optimizers.replacement import check_replacement
from popdist_onnx.optimizers.settings import Setting, read_defaults, read_specifics
from popdist_onnx.optimizers.values import OptimizerValue, OptimizerValueMap
from popdist_onnx.types.dtypes import DataType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from popdist_onnx.optimizers.clip_norm import ClipNormSettings
    from popdist_onnx.optimizers.scalars import Scalar


@dataclass(frozen=True)
class ScalarValue:
    """A scalar as it stands for one weight.

    Attributes:
        number: Its value now.
        const: Whether it is baked into the graph.
        own: Whether it is made of settings of that weight alone.
    """

    number: float
    const: bool
    own: bool


class Optimizer:
    """Base of the optimizers.

    Args:
        values: Settings by the constructor's names, each a tuple of value and constness.
        clip_norm_settings: Groups of weights whose gradients are clipped.
    """

    settings: ClassVar[tuple[Setting, ...]] = ()
    published: ClassVar[str] = "Optimizer"
    accum_type: DataType = DataType.UNDEFINED

    def __init__(
        self,
        values: Mapping[str, tuple[float, bool]],
        clip_norm_settings: Sequence[ClipNormSettings] = (),
    ) -> None:
        self._defaults = read_defaults(self.published, self.settings, values)
        self._specifics: dict[str, dict[str, OptimizerValue]] = {}
        self._clips = checked_clips(clip_norm_settings)

    def insertSpecific(self, weightId: str, values: Mapping[str, tuple[float, bool]]) -> None:
        """Gives one weight settings of its own.

        Args:
            weightId: The weight's tensor id.
            values: Settings by their plain names (``learningRate``), as tuples of value and
                constness; those not named keep the default.

        Raises:
            OptimizerSettingError: A name is unknown or cannot differ by weight, or a value is no
                tuple.
            OptimizerValueError: A value is out of range.
        """
        read = read_specifics(self.published, self.settings, values)
        self._specifics.setdefault(weightId, {}).update(read)

    def hasSpecific(self, weightId: str | None = None) -> bool:
        """Whether a weight, or any, has settings of its own.

        Args:
            weightId: The weight's tensor id; None asks for any.

        Returns:
            True where there are some.
        """
        return bool(self._specifics) if weightId is None else weightId in self._specifics

    def specific_weights(self) -> list[str]:
        """The weights with settings of their own."""
        return list(self._specifics)

    def value(self, key: str, weight: str | None = None) -> OptimizerValue:
        """A setting's value.

        Args:
            key: The setting.
            weight: The weight that it is for; None takes the default.

        Returns:
            The weight's own value where there is one, else the default.
        """
        return self._specifics.get(weight or "", {}).get(key, self._defaults[key])

    def value_map(self, key: str) -> OptimizerValueMap:
        """A setting's value by weight.

        Args:
            key: The setting.

        Returns:
            Its default and the values of single weights.
        """
        own = {weight: v[key] for weight, v in self._specifics.items() if key in v}
        return OptimizerValueMap(self._defaults[key], own)

    def learningRates(self) -> OptimizerValueMap:
        """The learning rate by weight."""
        return self.value_map("learningRate")

    def weightDecays(self) -> OptimizerValueMap:
        """The weight decay by weight."""
        return self.value_map("weightDecay")

    def has_momentum(self, weight: str | None = None) -> bool:
        """Whether a weight's last step is kept, by an optimizer with the setting ``momentum``.

        Args:
            weight: The weight; None asks for the default.

        Returns:
            True where its momentum is not 0 or may change.
        """
        momentum = self.value("momentum", weight)
        return not momentum.isConst() or momentum.val() != 0

    def lossScaling(self) -> OptimizerValue:
        """The factor of the loss in backward passes."""
        return self._defaults["lossScaling"]

    def getLossScalingVal(self) -> float:
        """The factor of the loss in backward passes, as a number."""
        return self.lossScaling().val()

    def getClipNormSettings(self) -> list[ClipNormSettings]:
        """The groups of weights whose gradients are clipped."""
        return list(self._clips)

    def scalar(self, scalar: Scalar, weight: str | None, divisor: float) -> ScalarValue:
        """A scalar as it stands for one weight.

        Args:
            scalar: Its declaration.
            weight: The weight; None for the default.
            divisor: The number of micro-batches that a gradient is the mean of (1 with Sum).

        Returns:
            Its number and constness.
        """
        values = {key: self.value(key, weight) for key in scalar.settings}
        own = any(key in self._specifics.get(weight or "", {}) for key in scalar.settings)
        number = scalar.formula({key: v.val() for key, v in values.items()}, divisor)
        void = values[scalar.factor] if scalar.factor else None
        const = void is not None and void.isConst() and void.val() == 0
        return ScalarValue(number, const or all(v.isConst() for v in values.values()), own)

    def scalars(self) -> tuple[Scalar, ...]:
        """Every scalar that an update by this optimizer may read."""
        raise NotImplementedError

    def form(self) -> dict[str, object]:
        """What decides the shape of the update beside the settings' constness, by name."""
        return {}

    def validReplacement(self, other: Optimizer) -> bool:
        """Whether another optimizer fits a graph made with this one.

        Args:
            other: The other optimizer.

        Returns:
            True where only non-constant values differ.
        """
        try:
            check_replacement(self, require_optimizer(other))
        except OptimizerReplacementError:
            return False
        return True

    def state_factors(self, before: Optimizer) -> dict[str, float]:  # noqa: ARG002 - few have any
        """What states are multiplied by when this optimizer takes the place of another one.

        Args:
            before: The optimizer that the states come from.

        Returns:
            The factor by prefix of the state; empty where nothing changes.
        """
        return {}

    def __repr__(self) -> str:
        # Complete, so that instances can compare theirs.
        defaults = {
            setting.constructor_key: (value.val(), value.isConst())
            for setting in self.settings
            if (value := self._defaults[setting.key]) != OptimizerValue(setting.default)
        }
        parts = [repr(defaults), *(f"{name}={value}" for name, value in self.form().items())]
        if self._clips:
            parts.append(f"clip_norm_settings={list(self._clips)!r}")
        parts += [
            f"{weight}: { {key: (v.val(), v.isConst()) for key, v in own.items()} }"
            for weight, own in self._specifics.items()
        ]
        return f"{self.published}({', '.join(parts)})"


def require_optimizer(given: object) -> Optimizer:
    """Refuses what is no optimizer of this adapter.

    Args:
        given: What a program gave as optimizer.

    Returns:
        The same.

    Raises:
        OptimizerSettingError: It is something else.
    """
    if not isinstance(given, Optimizer):
        raise OptimizerSettingError(
            "PD540",
            "this is no optimizer of the ONNX adapter",
            value=given,
            accepted="an object of popdist_onnx.SGD, ConstSGD, Adam or Adaptive",
        )
    return given
