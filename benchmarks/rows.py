"""Rows: one measured value beside one peer, with its aim and its verdict. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from benchmarks.sampling import Missing, Samples

if TYPE_CHECKING:
    from collections.abc import Mapping

UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6}
"""Units of time, with how many of them make a second."""


@dataclass(frozen=True, kw_only=True)
class Aim:
    """What a value has to reach.

    Attributes:
        sentence: The aim in words; it reads after the row's name.
        of: Which number of the row it speaks about.
        at_most: The largest number that meets it, in the row's unit.
        at_least: Or the smallest.
        was: The aim that this one replaces, because that was beyond a limit measured beside it.
    """

    sentence: str
    of: Literal["value", "difference", "ratio"]
    at_most: float | None = None
    at_least: float | None = None
    was: str | None = None

    def __post_init__(self) -> None:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError("an aim is either an upper or a lower bound")

    def met_by(self, number: float) -> bool:
        """Whether a number reaches the aim.

        Args:
            number: The value, difference or ratio.

        Returns:
            True where it does; the bound itself does.
        """
        if self.at_most is not None:
            return number <= self.at_most
        return self.at_least is not None and number >= self.at_least


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the result.

    Attributes:
        name: What was measured; unique together with ``peer``.
        unit: The unit of every value and median in the row.
        value: The minimum; None where it could not be measured.
        median: The median of the same samples.
        samples: How many there were.
        peer: Whom it is compared with; None where it stands alone.
        peer_value: The peer's minimum.
        peer_median: The peer's median.
        aim: What it has to reach, if anything.
        refused: Why no verdict is given although there is an aim.
        note: What a reader must know to understand the numbers.
        parameters: What distinguishes this row within its benchmark, for charts and tools.
    """

    name: str
    unit: str
    value: float | None = None
    median: float | None = None
    samples: int = 0
    peer: str | None = None
    peer_value: float | None = None
    peer_median: float | None = None
    aim: Aim | None = None
    refused: str | None = None
    note: str = ""
    parameters: Mapping[str, str | int | float] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Value over peer: below 1 is faster than the peer."""
        if self.value is None or not self.peer_value:
            return None
        return self.value / self.peer_value

    @property
    def difference(self) -> float | None:
        """Value minus peer, in the row's unit."""
        if self.value is None or self.peer_value is None:
            return None
        return self.value - self.peer_value

    @property
    def met(self) -> bool | None:
        """The verdict: None without an aim, without the numbers for it, and where refused."""
        if self.aim is None or self.refused is not None:
            return None
        number = {"value": self.value, "difference": self.difference, "ratio": self.ratio}[
            self.aim.of
        ]
        return None if number is None else self.aim.met_by(number)

    def refuse(self, reason: str | None) -> Row:
        """The same row without a verdict.

        Args:
            reason: Why; None leaves the row as it is.

        Returns:
            The row; an earlier reason stays, joined with the new one.
        """
        if reason is None or self.aim is None:
            return self
        return replace(self, refused="; ".join(filter(None, (self.refused, reason))))


def compare(
    name: str,
    measured: Samples | Missing,
    *,
    unit: str,
    peer: str | None = None,
    against: Samples | Missing | None = None,
    aim: Aim | None = None,
    note: str = "",
    parameters: Mapping[str, str | int | float] | None = None,
) -> Row:
    """Makes a row from times.

    Args:
        name: What was measured.
        measured: Its samples.
        unit: A key of `UNITS`.
        peer: Whom it is compared with.
        against: The peer's samples.
        aim: What it has to reach.
        note: What a reader must know.
        parameters: What distinguishes this row within its benchmark.

    Returns:
        The row. Where a side is missing its fields are None and the note and, if there is an aim,
        the refusal say why.
    """
    gaps = []
    if isinstance(measured, Missing):
        gaps.append(f"not available: {measured.reason}")
    if isinstance(against, Missing):
        gaps.append(f"{peer} not available: {against.reason}")
    value, median = _summary(measured, unit)
    peer_value, peer_median = _summary(against, unit)
    return Row(
        name=name,
        unit=unit,
        value=value,
        median=median,
        samples=len(measured.seconds) if isinstance(measured, Samples) else 0,
        peer=peer,
        peer_value=peer_value,
        peer_median=peer_median,
        aim=aim,
        refused="; ".join(gaps) if gaps and aim else None,
        note="; ".join(filter(None, (note, *gaps))),
        parameters=dict(parameters or {}),
    )


def _summary(times: Samples | Missing | None, unit: str) -> tuple[float | None, float | None]:
    """Minimum and median in a unit, where there are any."""
    if not isinstance(times, Samples):
        return None, None
    return times.minimum * UNITS[unit], times.median * UNITS[unit]
