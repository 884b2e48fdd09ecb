"""Values of optimizer settings: numbers that may change between updates, and norms that clip."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import IntEnum
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


# Groups of weights whose gradients are clipped by their common norm.


class ClipNormMode(IntEnum):
    """Which weights a group holds."""

    ClipSpecifiedWeights = 0
    ClipAllWeights = 1


class ClipNormSettings:
    """One group of weights, and the largest norm of their gradients together.

    A group's gradients are multiplied by ``maxNorm / max(norm, maxNorm)``, where the norm is the
    root of the sum of squares over the group, without loss scaling and (with Mean) after division
    by the number of micro-batches.

    Args:
        weightIds: The weights' tensor ids; ignored with `ClipNormMode.ClipAllWeights`.
        maxNorm: The largest norm.
        mode: Which weights the group holds.

    Raises:
        OptimizerSettingError: The ids are not a list of names.
        OptimizerValueError: The norm is not a positive finite number.
    """

    Mode = ClipNormMode

    def __init__(
        self,
        weightIds: Sequence[str],
        maxNorm: float,
        mode: ClipNormMode = ClipNormMode.ClipSpecifiedWeights,
    ) -> None:
        if (
            isinstance(weightIds, str)
            or not isinstance(weightIds, Iterable)
            or not all(isinstance(weight, str) for weight in weightIds)
        ):
            raise OptimizerSettingError(
                "PD540",
                "clipping takes a list of weight ids",
                value=weightIds,
                accepted="for example ClipNormSettings.clipWeights([w, b], 1.0)",
            )
        number = isinstance(maxNorm, int | float | np.number) and not isinstance(maxNorm, bool)
        if not number or not (math.isfinite(maxNorm) and maxNorm > 0):
            raise OptimizerValueError(
                "PD541",
                "the norm to clip to is a positive number",
                value=maxNorm,
                accepted=">0, finite",
            )
        if mode is ClipNormMode.ClipSpecifiedWeights and not weightIds:
            raise OptimizerSettingError(
                "PD540",
                "a clipping group is empty",
                hint="ClipNormSettings.clipAllWeights(maxNorm) takes all",
            )
        # Sets have another order in each process, and sums would round in another way.
        self.weightIds = (
            sorted(weightIds) if isinstance(weightIds, AbstractSet) else list(weightIds)
        )
        self.maxNorm = float(maxNorm)
        self.mode = mode

    @staticmethod
    def clipWeights(weightIds: Sequence[str], maxNorm: float) -> ClipNormSettings:
        """A group of named weights.

        Args:
            weightIds: Their tensor ids.
            maxNorm: The largest norm of their gradients together.

        Returns:
            The group.
        """
        return ClipNormSettings(weightIds, maxNorm)

    @staticmethod
    def clipAllWeights(maxNorm: float) -> ClipNormSettings:
        """All weights as one group.

        Args:
            maxNorm: The largest norm of their gradients together.

        Returns:
            The group.
        """
        return ClipNormSettings([], maxNorm, ClipNormMode.ClipAllWeights)

    def getWeightIds(self) -> list[str]:
        """The group's weights; empty where it holds all.

        Returns:
            Their ids, in the order given.
        """
        return list(self.weightIds)

    def getMaxNorm(self) -> float:
        """The largest norm.

        Returns:
            The number that the group was made with.
        """
        return self.maxNorm

    def getMode(self) -> ClipNormMode:
        """Which weights the group holds.

        Returns:
            One of `ClipNormMode`.
        """
        return self.mode

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClipNormSettings):
            return NotImplemented
        return (self.weightIds, self.maxNorm, self.mode) == (
            other.weightIds,
            other.maxNorm,
            other.mode,
        )

    def __hash__(self) -> int:
        return hash((tuple(self.weightIds), self.maxNorm, self.mode))

    def __repr__(self) -> str:
        if self.mode is ClipNormMode.ClipAllWeights:
            return f"ClipNormSettings.clipAllWeights({self.maxNorm!r})"
        return f"ClipNormSettings.clipWeights({self.weightIds!r}, {self.maxNorm!r})"
