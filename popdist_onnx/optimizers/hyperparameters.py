"""Settings of optimizers, their reading from dictionaries, and the scalars that updates read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from popdist.nearest import did_you_mean
from popdist_onnx.graph import names
from popdist_onnx.optimizers.values import (
    OptimizerSettingError,
    OptimizerValue,
    OptimizerValueError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Formula = Callable[[Mapping[str, float], float], float]


Check = Literal["rate", "not negative", "positive", "not zero", "switch"]

CHECKS: dict[Check, str] = {
    "rate": "not negative, and not a constant 0",
    "not negative": "0 or more",
    "positive": "more than 0",
    "not zero": "any number but 0",
    "switch": "constant 0 or 1",
}
"""What each check accepts, in words."""


@dataclass(frozen=True)
class Hyperparameter:
    """One number that an optimizer takes.

    Attributes:
        key: Name in ``insertSpecific``.
        default: Value of programs that give none; it is constant.
        check: What is accepted.
        meaning: What it does, for the documentation.
        per_weight: Whether single weights may have a value of their own.
        prefixed: Whether the constructor's key is ``default`` and the name.
    """

    key: str
    default: float
    check: Check
    meaning: str
    per_weight: bool = True
    prefixed: bool = True

    @property
    def constructor_key(self) -> str:
        """The name in the constructor's dictionary."""
        return f"default{self.key[0].upper()}{self.key[1:]}" if self.prefixed else self.key

    def checked(self, value: OptimizerValue, optimizer: str) -> OptimizerValue:
        """Refuses a value that this setting does not take.

        Raises:
            OptimizerValueError: The value is out of range.
        """
        number, const = value.val(), value.isConst()
        fits = {
            "rate": number > 0 or (number == 0 and not const),
            "not negative": number >= 0,
            "positive": number > 0,
            "not zero": number != 0,
            "switch": const and number in {0.0, 1.0},
        }[self.check]
        if not fits:
            kind = "constant zero" if self.check == "rate" and number == 0 else "unusable"
            kind = "negative" if number < 0 else kind
            raise OptimizerValueError(
                "PD541",
                f"Constant, zero learning rate in {optimizer}"
                if kind == "constant zero"
                else f"{kind} {self.key} in {optimizer}",
                value=number,
                accepted=CHECKS[self.check],
                hint="write (0.0, False) for a rate that a later update raises"
                if kind == "constant zero"
                else None,
            )
        return value


LOSS_SCALING = Hyperparameter(
    "lossScaling",
    1.0,
    "not zero",
    "factor of the loss in backward passes; updates divide by it",
    per_weight=False,
    prefixed=False,
)


def read_defaults(
    optimizer: str, settings: Sequence[Hyperparameter], values: Mapping[str, tuple[float, bool]]
) -> dict[str, OptimizerValue]:
    """Reads the dictionary of a constructor.

    Raises:
        OptimizerSettingError: A name is unknown, or a value is not a pair.
        OptimizerValueError: A value is out of range.
    """
    by_name = {setting.constructor_key: setting for setting in settings}
    # The published dictionary has both spellings in use for this one.
    if "maxWeightNorm" in by_name:
        by_name["defaultMaxWeightNorm"] = by_name["maxWeightNorm"]
    given = _read(optimizer, by_name, values)
    return {
        setting.key: given[setting.key]
        if setting.key in given
        else setting.checked(OptimizerValue(setting.default), optimizer)
        for setting in settings
    }


def read_specifics(
    optimizer: str, settings: Sequence[Hyperparameter], values: Mapping[str, tuple[float, bool]]
) -> dict[str, OptimizerValue]:
    """Reads the dictionary of ``insertSpecific``.

    Raises:
        OptimizerSettingError: A name is unknown, or a value is not a pair.
        OptimizerValueError: A value is out of range.
    """
    return _read(optimizer, {s.key: s for s in settings if s.per_weight}, values)


def _read(
    optimizer: str, by_name: Mapping[str, Hyperparameter], values: Mapping[str, tuple[float, bool]]
) -> dict[str, OptimizerValue]:
    if not hasattr(values, "items"):
        raise OptimizerSettingError(
            "PD540",
            f"{optimizer} takes a dictionary of settings",
            value=values,
            accepted='for example {"' + next(iter(by_name)) + '": (0.1, False)}',
        )
    read = {}
    for name, given in values.items():
        # A value object stands for its pair.
        value = (given.val(), given.isConst()) if isinstance(given, OptimizerValue) else given
        if name not in by_name:
            raise OptimizerSettingError(
                "PD540",
                f"{optimizer} has no setting {name}",
                accepted=", ".join(by_name),
                hint=did_you_mean(str(name), by_name, cutoff=0.5),
            )
        if not _is_pair(value):
            raise OptimizerSettingError(
                "PD540",
                f"{optimizer}'s {name} is a tuple of value and constness",
                value=value,
                accepted="(float, bool), for example (0.1, False)",
            )
        setting = by_name[name]
        read[setting.key] = setting.checked(OptimizerValue(*value), optimizer)
    return read


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2  # noqa: PLR2004


# The scalars that updates are made of: published names, and how each follows from settings.


@dataclass(frozen=True)
class Scalar:
    """A number of the update.

    It is constant where all settings it is made of are, or where one that it is multiplied by is a
    constant 0.

    Attributes:
        prefix: Beginning of its published tensor id.
        settings: Keys of the settings it is made of.
        formula: From the settings' values, and the number of micro-batches that a gradient is the
            mean of (1 with Sum), to the number.
        factor: The setting whose 0 makes the others irrelevant.
    """

    prefix: str
    settings: tuple[str, ...]
    formula: Formula
    factor: str | None = None

    def tensor_id(self, weight: str | None, dtype: str) -> str:
        """The published id.

        Args:
            weight: The weight whose own settings it is made of; None for the default.
            dtype: Name of its element type.

        Returns:
            ``<prefix>___default___<TYPE>`` or ``<prefix>___specific___<weight>``.
        """
        if weight is None:
            return f"{self.prefix}{names.DEFAULT_SCALAR}{dtype}"
        return f"{self.prefix}{names.SPECIFIC_SCALAR}{weight}"


def plain(prefix: str, key: str) -> Scalar:
    """A number that is a setting itself."""
    return Scalar(prefix, (key,), lambda values, _divisor: values[key])


def owner(tensor_id: str) -> tuple[str, str | None] | None:
    """Takes a scalar's published id apart.

    Args:
        tensor_id: A tensor id.

    Returns:
        The prefix and the weight (None for the default); None where it is not a scalar's id.
    """
    for separator, own in ((names.SPECIFIC_SCALAR, True), (names.DEFAULT_SCALAR, False)):
        prefix, found, rest = tensor_id.partition(separator)
        if found:
            return prefix, rest if own else None
    return None


CLIP_SCALING = Scalar(
    "clipGradientScaling", ("lossScaling",), lambda v, af: 1 / (abs(v["lossScaling"]) * af)
)
"""What the norm of summed, loss-scaled gradients is multiplied by to be that of the mean."""

LOSS_SCALING_INPUT = "lossScaling_"
"""Beginning of the id of the input that carries a loss scaling; its element type follows."""

UPDATE_FACTOR = "lossScaleUpdateFactor"
"""The input that carries what automatic loss scaling multiplies the loss scaling by."""


def is_scalar_input(name: str) -> bool:
    """Whether an input of a graph carries a number of the optimizer, and no data.

    Args:
        name: The input's name.

    Returns:
        True for the published ids of such numbers.
    """
    return name.startswith((LOSS_SCALING_INPUT, UPDATE_FACTOR)) or owner(name) is not None
