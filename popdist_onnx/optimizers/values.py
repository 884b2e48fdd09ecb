"""Values of optimizer settings: a number, and whether it may change between updates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from popdist_onnx.errors import ArgumentError, ValueRangeError, popart_exception

if TYPE_CHECKING:
    from collections.abc import Mapping


# The errors of optimizers and of the passes that use them.


class OptimizerSettingError(ArgumentError):
    """A setting of an optimizer is unknown, or not a pair of value and constness."""


class OptimizerValueError(ValueRangeError):
    """A setting of an optimizer is out of range, or contradicts another."""


class OptimizerReplacementError(popart_exception, ValueError):
    """A new optimizer needs another graph than the session's."""


class UpdateError(popart_exception, ValueError):
    """A model cannot be given the updates of an optimizer."""


class OptimizerValue:
    """A number with its constness.

    Args:
        val: The number, or a pair of number and constness.
        isConst: Whether it is baked into the graph; others are inputs that a session fills again
            after each ``updateOptimizerFromHost``.

    Raises:
        OptimizerSettingError: The parts have other types.
        OptimizerValueError: The number is not finite.
    """

    __slots__ = ("_const", "_val")

    def __init__(self, val: float | tuple[float, bool], isConst: bool = True) -> None:
        pair = val if isinstance(val, tuple) and len(val) == 2 else (val, isConst)  # noqa: PLR2004
        number, const = pair
        is_number = isinstance(number, int | float | np.number) and not isinstance(number, bool)
        if not is_number or not isinstance(const, bool | np.bool_):
            raise OptimizerSettingError(
                "PD540",
                "an optimizer value is a number with its constness",
                value=pair,
                accepted="(float, bool), for example (0.1, False)",
            )
        self._val = float(number)
        self._const = bool(const)
        if not math.isfinite(self._val):
            raise OptimizerValueError(
                "PD541", "an optimizer value is finite", value=self._val, accepted="a finite number"
            )

    def val(self) -> float:
        """The number.

        Returns:
            The value as a Python number.
        """
        return self._val

    def isConst(self) -> bool:
        """Whether it is baked into the graph.

        Returns:
            False where `updateOptimizerFromHost` may change it.
        """
        return self._const

    def validReplacement(self, other: OptimizerValue) -> bool:
        """Whether another value fits a graph made with this one.

        Args:
            other: The other value.

        Returns:
            True for equal constness and, where constant, equal numbers.
        """
        return self._const == other._const and (not self._const or self._val == other._val)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OptimizerValue):
            return NotImplemented
        return (self._val, self._const) == (other._val, other._const)

    def __hash__(self) -> int:
        return hash((self._val, self._const))

    def __repr__(self) -> str:
        return f"OptimizerValue({self._val!r}, {self._const})"


@dataclass(frozen=True)
class OptimizerValueMap:
    """A setting's value by weight.

    Args:
        default: The value of weights without one of their own.
        specifics: Values of single weights.
    """

    default: OptimizerValue
    specifics: Mapping[str, OptimizerValue]

    def get(self, weight: str) -> OptimizerValue:
        """The value for a weight.

        Args:
            weight: The weight's tensor id.

        Returns:
            Its own value, else the default.
        """
        return self.specifics.get(weight, self.default)

    def getDefault(self) -> OptimizerValue:
        """The value of weights without one of their own.

        Returns:
            The number, and whether it is constant.
        """
        return self.default

    def hasSpecific(self, weight: str | None = None) -> bool:
        """Whether a weight, or any, has a value of its own.

        Args:
            weight: The weight's tensor id; None asks for any.

        Returns:
            True where there is one.
        """
        return bool(self.specifics) if weight is None else weight in self.specifics
