"""The scale of an axis: ticks are round numbers within its range, in their places."""

import math
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from popdist.report.drawing import _Axis, bars

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(FINITE, FINITE)
@example(0.0, 5e-324)
@example(-1.7976931348623157e308, 1.7976931348623157e308)
@example(1.0, 1.0000000000000002)
def test_ticks_lie_within_the_axis_in_their_order(one, other):
    axis = _Axis(min(one, other), max(one, other), 0.0, 100.0)
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 9
    assert ticks == sorted(ticks)
    places = [axis.at(value) for value in (axis.low, *ticks, axis.high)]
    assert all(math.isfinite(place) for place in places)
    assert places[0] == 0.0
    assert places[-1] == 100.0
    assert all(-1e-6 <= place <= 100.0 + 1e-6 for place in places)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.0, 1.0, ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (0.0, 0.7, ["0", "0.2", "0.4", "0.6"]),
        (-3.0, 9.0, ["0", "5"]),
        (1.0, 100.0, ["20", "40", "60", "80", "100"]),
        (0.0, 5e-324, ["0", "5e-324"]),
    ],
)
def test_ticks_are_round_numbers(low, high, ticks):
    assert _Axis(low, high, 0.0, 1.0).ticks() == [float(Decimal(tick)) for tick in ticks]


@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=3))
@example([5e-324])
@example([1e308, 1e-320])
def test_bars_are_as_long_as_their_share(lengths):
    drawn = bars({0: [("memory", length) for length in lengths]}, "MiB")
    assert "nan" not in drawn
    assert "inf" not in drawn
