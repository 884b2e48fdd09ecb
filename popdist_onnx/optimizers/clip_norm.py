"""`ClipNormSettings`: groups of weights whose gradients are clipped by their common norm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from enum import IntEnum

import numpy as np

from popdist_onnx.optimizers.values import OptimizerSettingError, OptimizerValueError


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
