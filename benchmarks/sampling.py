"""How samples are taken and summarised.

Contenders take turns, so that whatever disturbs the machine disturbs all of them, and the order of
the turns changes, so that nobody always follows the same neighbour. A result is the minimum: what
disturbs a run only ever adds time. The median stands beside it and shows how much was added.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


class MeasurementError(RuntimeError):
    """Something that was to be measured did not run to its end."""


@dataclass(frozen=True)
class Samples:
    """The times of one contender.

    Attributes:
        seconds: One time for each repetition, in the order in which they were taken.
    """

    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.seconds:
            raise ValueError("a result needs at least one sample")

    @property
    def minimum(self) -> float:
        """The least disturbed sample."""
        return min(self.seconds)

    @property
    def median(self) -> float:
        """The ordinary sample."""
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Missing:
    """Stands in for the samples of a contender that cannot be measured here.

    Attributes:
        reason: Why not, for the reader of the table.
    """

    reason: str


def turns(names: Sequence[str], repetition: int) -> list[str]:
    """The order of one repetition: another one starts each time, every other time backwards.

    Args:
        names: The contenders.
        repetition: Which repetition, from 0.

    Returns:
        All the names. The order depends on the arguments only, so all ranks agree on it.
    """
    if not names:
        return []
    start = repetition % len(names)
    order = [*names[start:], *names[:start]]
    return order[::-1] if repetition % 2 else order


def interleave(
    contenders: Mapping[str, Callable[[], float]], repetitions: int
) -> dict[str, list[float]]:
    """Lets contenders take turns.

    Args:
        contenders: For each name a function that takes one sample and returns its seconds.
        repetitions: Samples of each.

    Returns:
        The seconds of each contender, in the order of ``contenders``.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for repetition in range(repetitions):
        for name in turns(tuple(contenders), repetition):
            seconds[name].append(contenders[name]())
    return seconds


def slowest(ranks: Sequence[Sequence[float]]) -> list[float]:
    """Joins what the ranks of a job saw of the same samples.

    Args:
        ranks: The seconds of each rank.

    Returns:
        For each sample the time of its slowest rank: a collective ends when all have ended.
    """
    return [max(sample) for sample in zip(*ranks, strict=True)]


def drift(minima: Iterable[float]) -> float:
    """How far the same measurement moved between windows of time.

    Args:
        minima: Its minimum in each window.

    Returns:
        The largest over the smallest; 1.0 where nothing moved.
    """
    known = list(minima)
    return max(known) / min(known)
