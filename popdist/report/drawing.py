"""Pictures as SVG text: lines over an axis, and bars. Pure."""

from __future__ import annotations

import math
from decimal import Decimal
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from popdist.report.figures import Points, Work

COLORS = (
    "#2f6fde", "#d1572a", "#2a8f5b", "#8a4fc9", "#c79a1b", "#1c93a8", "#c23f7b", "#6b7280",
)  # fmt: skip

MEAN = "mean"
"""The name of the series of all instances together, which is drawn in the text's colour."""

_WIDTH, _HEIGHT = 720, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 40
_BAR = 22


def color(place: int) -> str:
    """The colour of a series by its place; colours repeat."""
    return COLORS[place % len(COLORS)]


def color_class(name: str, place: int) -> str:
    """The class with the colour of a series."""
    return "mean" if name == MEAN else f"c{place % len(COLORS)}"


def lines(series: Mapping[str, Points], *, x: str, y: str) -> str:
    """Lines over a common axis, by their names; values that are not finite are gaps.

    ``x`` and ``y`` are the titles of the axes. The vertical axis starts at 0 or below.
    """
    finite = [(a, b) for points in series.values() for a, b in points if _drawn(a, b)]
    if not finite:
        return "<p>No finite numbers to draw.</p>"
    across = _Axis(min(a for a, _ in finite), max(a for a, _ in finite), _LEFT, _WIDTH - _RIGHT)
    lowest = min(0.0, *(b for _, b in finite))
    up = _Axis(lowest, max(b for _, b in finite), _HEIGHT - _BOTTOM, _TOP)
    parts = [*_grid(across, up), *_titles(x, y)]
    for place, (name, points) in enumerate(series.items()):
        path = _path(points, across, up)
        mean = " mean" if name == MEAN else ""
        parts.append(
            f'<path class="s p{place}{mean}" d="{path}" stroke="{color(place)}">'
            f"<title>{escape(name)}</title></path>"
        )
    return _svg(parts, _HEIGHT, f"{y} over {x}")


def stretches(work: Sequence[Work], most: float) -> str:
    """Computing and waiting of one instance, stacked; ``most`` is the scale's end in seconds."""
    height = 150
    across = _Axis(work[0].round, work[-1].round, _LEFT, _WIDTH - _RIGHT)
    up = _Axis(0.0, most * 1e3, height - _BOTTOM, _TOP)
    bottom = [(one.round, 0.0) for one in work]
    computed = [(one.round, one.computed * 1e3) for one in work]
    whole = [(one.round, (one.computed + one.waited) * 1e3) for one in work]
    parts = [*_grid(across, up), *_titles("round of the exchange", "ms", height)]
    for lower, upper, kind in ((bottom, computed, "computing"), (computed, whole, "waiting")):
        outline = _path([*lower, *reversed(upper)], across, up)
        parts.append(f'<path class="{kind}" d="{outline}Z"><title>{kind}</title></path>')
    return _svg(parts, height, "computing and waiting over rounds")


def bars(values: Mapping[int, Sequence[tuple[str, float]]], unit: str) -> str:
    """A bar for each instance; each part has a CSS class and a length in ``unit``."""
    most = max(sum(length for _, length in parts) for parts in values.values()) or 1.0
    room = _WIDTH - 2 * _LEFT - _RIGHT
    drawn = []
    for row, (index, parts) in enumerate(values.items()):
        top, left = row * _BAR, float(_LEFT)
        drawn.append(f'<text x="{_LEFT - 8}" y="{top + 15}" text-anchor="end">{index}</text>')
        for kind, length in parts:
            wide = room * (length / most)
            drawn.append(
                f'<rect class="{kind}" x="{left:.1f}" y="{top + 3}" width="{wide:.1f}" '
                f'height="{_BAR - 6}"><title>{kind}: {_number(length)} {unit}</title></rect>'
            )
            left += wide
        whole = _number(sum(length for _, length in parts))
        drawn.append(f'<text x="{left + 6:.1f}" y="{top + 15}">{whole} {unit}</text>')
    return _svg(drawn, len(values) * _BAR + 4, f"{unit} by instance")


class _Axis:
    """A scale from values to places.

    Args:
        low: The lowest value.
        high: The highest value.
        start: The place of the lowest.
        end: The place of the highest.
    """

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low = low if high > low else min(low, 0.0)
        self.high = high if high > low else max(low, 0.0 if low else 1.0)
        self._start = start
        self._end = end
        # Differences of values between -1 and 1 neither overflow nor vanish.
        self._exponent = math.frexp(max(abs(self.low), abs(self.high)))[1]

    def at(self, value: float) -> float:
        """The place of a value."""
        here, low, high = (math.ldexp(one, -self._exponent) for one in (value, self.low, self.high))
        return self._start + (here - low) / (high - low) * (self._end - self._start)

    def ticks(self) -> list[float]:
        """Two to nine round values, as decimals, as a step may be smaller than any float."""
        low, high = Decimal(self.low), Decimal(self.high)
        rough = (high - low) / 5
        power = Decimal(1).scaleb(rough.adjusted())
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
        first, last = math.ceil(low / step), math.floor(high / step)
        return list(dict.fromkeys(float(number * step) for number in range(first, last + 1)))


def _drawn(a: float, b: float) -> bool:
    return math.isfinite(a) and math.isfinite(b)


def _path(points: Points, across: _Axis, up: _Axis) -> str:
    words, pen = [], "M"
    for a, b in points:
        if not _drawn(a, b):
            pen = "M"
            continue
        words.append(f"{pen}{across.at(a):.1f},{up.at(b):.1f}")
        pen = "L"
    return "".join(words)


def _grid(across: _Axis, up: _Axis) -> list[str]:
    left, right = across.at(across.low), across.at(across.high)
    bottom, top = up.at(up.low), up.at(up.high)
    drawn = []
    for value in up.ticks():
        y = up.at(value)
        drawn.append(f'<path class="grid" d="M{left:.1f},{y:.1f}L{right:.1f},{y:.1f}"/>')
        drawn.append(
            f'<text x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{_number(value)}</text>'
        )
    for value in across.ticks():
        x = across.at(value)
        drawn.append(f'<path class="grid" d="M{x:.1f},{bottom:.1f}L{x:.1f},{top:.1f}"/>')
        drawn.append(
            f'<text x="{x:.1f}" y="{bottom + 16:.1f}" text-anchor="middle">{_number(value)}</text>'
        )
    return drawn


def _titles(x: str, y: str, height: int = _HEIGHT) -> list[str]:
    middle = (height - _BOTTOM + _TOP) / 2
    center = (_LEFT + _WIDTH - _RIGHT) / 2
    place = f'x="{center}" y="{height - 6}" text-anchor="middle"'
    turned = f'x="12" y="{middle}" text-anchor="middle" transform="rotate(-90 12 {middle})"'
    return [
        f'<text {place} class="axis">{escape(x)}</text>',
        f'<text {turned} class="axis">{escape(y)}</text>',
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"  # noqa: PLR2004 - four digits


def _svg(parts: Sequence[str], height: int, label: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )
