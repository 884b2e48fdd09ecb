"""What all optimizers are: settings with per-weight values, scalars made of them, states."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from popdist_onnx.errors import ArgumentError
from popdist_onnx.optimizers.hyperparameters import (
    CLIP_SCALING,
    LOSS_SCALING_INPUT,
    UPDATE_FACTOR,
    Hyperparameter,
    owner,
    read_defaults,
    read_specifics,
)
from popdist_onnx.optimizers.values import (
    ClipNormMode,
    ClipNormSettings,
    OptimizerReplacementError,
    OptimizerSettingError,
    OptimizerValue,
    OptimizerValueMap,
)
from popdist_onnx.types.tensor_info import DataType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from enum import Enum

    import onnx_ir as ir

    from popdist_onnx.graph.values import Array
    from popdist_onnx.optimizers.hyperparameters import Scalar


# What the constructors of optimizers are given, checked.


_FLOAT_TYPES = (DataType.UNDEFINED, DataType.FLOAT, DataType.FLOAT16, DataType.BFLOAT16)


def state_type(name: str, given: DataType | str) -> DataType:
    """Reads the element type that a state is kept in.

    Args:
        name: The argument's name, for the message.
        given: The type; UNDEFINED means the weight's.

    Returns:
        The type.

    Raises:
        OptimizerSettingError: States cannot be kept in it.
    """
    accepted = ", ".join(t.name for t in _FLOAT_TYPES)
    try:
        read = DataType.of(given)
    except ArgumentError as error:
        raise OptimizerSettingError(
            "PD540", f"{name} is not an element type", value=given, accepted=accepted
        ) from error
    if read not in _FLOAT_TYPES:
        raise OptimizerSettingError(
            "PD540", f"{name} is a floating-point type", value=read.name, accepted=accepted
        )
    return read


def check_member(name: str, given: object, enumeration: type[Enum]) -> None:
    """Refuses an argument that is not a member of its enumeration.

    Raises:
        OptimizerSettingError: It is none.
    """
    if not isinstance(given, enumeration):
        raise OptimizerSettingError(
            "PD540",
            f"{name} is a member of {enumeration.__name__}",
            value=given,
            accepted=", ".join(f"{enumeration.__name__}.{m.name}" for m in enumeration),
        )


def checked_clips(clips: Sequence[ClipNormSettings]) -> tuple[ClipNormSettings, ...]:
    """Refuses groups of clipping that are none, or share a weight.

    Raises:
        OptimizerSettingError: One is not a group, or a weight is in two.
    """
    clips = tuple(clips)
    for clip in clips:
        if not isinstance(clip, ClipNormSettings):
            raise OptimizerSettingError(
                "PD540",
                "clip_norm_settings is a list of ClipNormSettings",
                value=clip,
                hint="write [ClipNormSettings.clipAllWeights(1.0)]",
            )
    everything = any(clip.mode is ClipNormMode.ClipAllWeights for clip in clips)
    named = [weight for clip in clips for weight in clip.weightIds]
    twice = sorted({weight for weight in named if named.count(weight) > 1})
    if twice or (everything and len(clips) > 1):
        raise OptimizerSettingError(
            "PD540",
            "a weight is in more than one clipping group",
            value=twice or clips,
            accepted="each weight in one group at most",
        )
    return clips


# Whether a new optimizer fits the graph that an old one was built into.


_HINT = "make what changes non-constant from the start, as (value, False), or build a new session"


def check_replacement(old: Optimizer, new: Optimizer) -> None:
    """Refuses an optimizer that would need another graph.

    It may differ in the numbers of non-constant settings only: kind, structure, constness, weights
    with settings of their own, constant numbers and clipping stay.

    Args:
        old: The optimizer that the graph was made with.
        new: The one to take its place.

    Raises:
        OptimizerReplacementError: The first difference that matters.
    """
    for what, before, after in _differences(old, new):
        raise OptimizerReplacementError(
            "PD542",
            f"New optimizer is not a valid replacement. {what}",
            value=after,
            accepted=str(before),
            hint=_HINT,
        )


def _differences(old: Optimizer, new: Optimizer) -> Iterator[tuple[str, object, object]]:
    if old.published != new.published:
        yield "It is of another type", old.published, new.published
        return
    for name, before in old.form().items():
        if (after := new.form()[name]) != before:
            yield f"Its {name} differs", before, after
    if old.getClipNormSettings() != new.getClipNormSettings():
        yield (
            "Its clip norm settings differ",
            old.getClipNormSettings(),
            new.getClipNormSettings(),
        )
    for setting in old.settings:
        before_map, after_map = old.value_map(setting.key), new.value_map(setting.key)
        yield from _unlike(f"default {setting.key}", before_map.default, after_map.default)
        own, others = set(before_map.specifics), set(after_map.specifics)
        if own != others:
            yield (
                f"Other weights have a {setting.key} of their own",
                sorted(own),
                sorted(others),
            )
            return
        for weight in sorted(own):
            yield from _unlike(
                f"{setting.key} of {weight}", before_map.get(weight), after_map.get(weight)
            )


def _unlike(
    name: str, before: OptimizerValue, after: OptimizerValue
) -> Iterator[tuple[str, object, object]]:
    if before.isConst() != after.isConst():
        words = {True: "constant", False: "not constant"}
        yield f"The constness of {name} differs", words[before.isConst()], words[after.isConst()]
    elif not before.validReplacement(after):
        yield f"The constant {name} differs", before.val(), after.val()


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


def by_weight(key: str) -> Callable[[Optimizer], OptimizerValueMap]:
    """A published method that returns the values of a setting."""

    def values(self: Optimizer) -> OptimizerValueMap:
        return self.value_map(key)

    values.__doc__ = f"The values of {key}: the default, and those of weights with their own."
    return values


class Optimizer:
    """Base of the optimizers.

    Args:
        values: Settings by the constructor's names, each a tuple of value and constness.
        clip_norm_settings: Groups of weights whose gradients are clipped.
    """

    settings: ClassVar[tuple[Hyperparameter, ...]] = ()
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
            OptimizerSettingError: A name is unknown or cannot differ by weight, or a value is
                not a tuple.
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

    def with_learning_rate(self, rate: float) -> Optimizer:
        """This optimizer with another default learning rate; rates of weights change alike.

        Args:
            rate: The learning rate.

        Returns:
            A copy, valid as a replacement where learning rates are not constant.
        """
        before = self.value("learningRate")
        ratio = rate / before.val() if before.val() else 1.0
        changed = copy.copy(self)
        changed._defaults = {**self._defaults}  # noqa: SLF001 - a copy of the same class
        changed._specifics = {name: {**own} for name, own in self._specifics.items()}  # noqa: SLF001 - same
        changed._defaults["learningRate"] = OptimizerValue(rate, before.isConst())  # noqa: SLF001 - same
        for own in changed._specifics.values():  # noqa: SLF001 - same
            if (one := own.get("learningRate")) is not None:
                own["learningRate"] = OptimizerValue(one.val() * ratio, one.isConst())
        return changed

    def with_loss_scaling(self, scale: float) -> Optimizer:
        """This optimizer with another loss scale.

        Args:
            scale: The loss scale.

        Returns:
            A copy.
        """
        changed = copy.copy(self)
        own = OptimizerValue(scale, self.lossScaling().isConst())
        changed._defaults = self._defaults | {"lossScaling": own}  # noqa: SLF001 - same class
        return changed

    def with_clipped_norm(self, norm: float) -> Optimizer:
        """This optimizer with the norm of all gradients together clipped.

        Args:
            norm: The largest norm.

        Returns:
            A copy.
        """
        changed = copy.copy(self)
        changed._clips = checked_clips([ClipNormSettings.clipAllWeights(norm)])  # noqa: SLF001
        return changed

    def value_map(self, key: str) -> OptimizerValueMap:
        """A setting's value by weight.

        Args:
            key: The setting.

        Returns:
            Its default and the values of single weights.
        """
        own = {weight: v[key] for weight, v in self._specifics.items() if key in v}
        return OptimizerValueMap(self._defaults[key], own)

    learningRates = by_weight("learningRate")
    """The learning rate by weight."""

    weightDecays = by_weight("weightDecay")
    """The weight decay by weight."""

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
        """The factor of the loss in backward passes.

        Returns:
            The factor, and whether it is constant.
        """
        return self._defaults["lossScaling"]

    def getLossScalingVal(self) -> float:
        """The factor of the loss in backward passes, as a number.

        Returns:
            1.0 without loss scaling.
        """
        return self.lossScaling().val()

    def getClipNormSettings(self) -> list[ClipNormSettings]:
        """The groups of weights whose gradients are clipped.

        Returns:
            The groups in the order given; empty without clipping.
        """
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

    def write(self, update: Any) -> None:
        """Writes one weight's update, a `WeightUpdate`, as nodes."""
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
        # Complete and without the order of insertion, so that instances can compare theirs.
        defaults = {
            setting.constructor_key: (value.val(), value.isConst())
            for setting in self.settings
            if (value := self._defaults[setting.key]) != OptimizerValue(setting.default)
        }
        parts = [repr(defaults), *(f"{name}={value}" for name, value in self.form().items())]
        if self._clips:
            parts.append(f"clip_norm_settings={list(self._clips)!r}")
        parts += [
            f"{weight}: { {key: (v.val(), v.isConst()) for key, v in sorted(own.items())} }"
            for weight, own in sorted(self._specifics.items())
        ]
        return f"{self.published}({', '.join(parts)})"


def require_optimizer(given: object) -> Optimizer:
    """Refuses what is not an optimizer of this adapter.

    Raises:
        OptimizerSettingError: It is something else.
    """
    if not isinstance(given, Optimizer):
        raise OptimizerSettingError(
            "PD540",
            "this is not an optimizer of the ONNX adapter",
            value=given,
            accepted="an object of popdist_onnx.SGD, ConstSGD, Adam or Adaptive",
        )
    return given


# What a session feeds into the inputs that carry an optimizer's non-constant numbers.


def scalar_feed(
    optimizer: Optimizer, value: ir.Value, divisor: float, grown: float = 1.0
) -> Array | None:
    """The present content of one input.

    Args:
        optimizer: The optimizer whose settings count.
        value: An input of a graph with this optimizer's updates.
        divisor: The number of micro-batches that a gradient is the mean of (1 with Sum).
        grown: What automatic loss scaling has multiplied the optimizer's loss scaling by.

    Returns:
        An array without dimensions; None where the input carries no number of the optimizer.
    """
    name = str(value.name)
    dtype = np.float32 if value.dtype is None else value.dtype.numpy()
    if name.startswith(LOSS_SCALING_INPUT):
        return np.asarray(optimizer.getLossScalingVal() / grown, dtype)
    if name == UPDATE_FACTOR:
        return np.asarray(grown, dtype)
    if (parts := owner(name)) is None:
        return None
    prefix, weight = parts
    by_prefix = {scalar.prefix: scalar for scalar in (*optimizer.scalars(), CLIP_SCALING)}
    if prefix not in by_prefix:
        return None
    return np.asarray(optimizer.scalar(by_prefix[prefix], weight, divisor).number, dtype)
