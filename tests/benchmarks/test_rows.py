import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.rows import UNITS, Aim, Row, compare
from benchmarks.sampling import Missing, Samples

SECONDS = st.lists(st.floats(1e-9, 1e3), min_size=1).map(tuple).map(Samples)
RATIO_AIM = Aim(sentence="twice as fast", of="ratio", at_most=0.5)


@given(SECONDS, SECONDS, st.sampled_from(sorted(UNITS)))
def test_ratio_and_difference_are_those_of_the_minima(mine, other, unit):
    row = compare("a", mine, unit=unit, peer="b", against=other)
    assert row.ratio == pytest.approx(mine.minimum / other.minimum)
    assert row.difference == pytest.approx((mine.minimum - other.minimum) * UNITS[unit])
    assert (row.value, row.peer_value) == (
        mine.minimum * UNITS[unit],
        other.minimum * UNITS[unit],
    )
    assert row.median == mine.median * UNITS[unit]
    assert row.samples == len(mine.seconds)


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_an_upper_bound_is_met_from_below_and_a_lower_one_from_above(number, bound):
    assert Aim(sentence="", of="value", at_most=bound).met_by(number) == (number <= bound)
    assert Aim(sentence="", of="value", at_least=bound).met_by(number) == (number >= bound)


@pytest.mark.parametrize("bounds", [{}, {"at_most": 1.0, "at_least": 1.0}])
def test_an_aim_is_one_bound(bounds):
    with pytest.raises(ValueError, match="upper or a lower"):
        Aim(sentence="", of="value", **bounds)


@pytest.mark.parametrize(
    ("of", "bound", "met"),
    [
        ("value", 3000.0, True),
        ("value", 2999.0, False),
        ("difference", 1000.0, True),
        ("difference", 999.0, False),
        ("ratio", 1.5, True),
        ("ratio", 1.49, False),
    ],
)
def test_the_verdict_speaks_about_the_number_that_the_aim_names(of, bound, met):
    aim = Aim(sentence="", of=of, at_most=bound)
    row = compare("a", Samples((3.0,)), unit="ms", peer="b", against=Samples((2.0,)), aim=aim)
    assert row.met is met


def test_without_an_aim_there_is_no_verdict_and_nothing_to_refuse():
    row = compare("a", Samples((1.0,)), unit="ms")
    assert row.met is None
    assert row.ratio is None
    assert row.refuse("busy").refused is None


def test_a_refused_verdict_keeps_the_numbers_and_all_reasons():
    row = compare("a", Samples((1.0,)), unit="ms", peer="b", against=Samples((4.0,)), aim=RATIO_AIM)
    assert row.met is True
    assert row.refuse(None) == row
    refused = row.refuse("moved").refuse("busy")
    assert refused.met is None
    assert refused.refused == "moved; busy"
    assert refused.ratio == row.ratio


@pytest.mark.parametrize(
    ("mine", "other", "note"),
    [
        (Missing("not built"), Samples((1.0,)), "not available: not built"),
        (Samples((1.0,)), Missing("not built"), "b not available: not built"),
    ],
)
def test_what_is_missing_is_said_and_never_judged(mine, other, note):
    row = compare("a", mine, unit="ms", peer="b", against=other, aim=RATIO_AIM, note="one thread")
    assert row.met is None
    assert row.ratio is None
    assert row.difference is None
    assert row.refused == note
    assert row.note == f"one thread; {note}"
    assert (row.value is None) == isinstance(mine, Missing)


def test_a_peer_that_took_no_time_gives_no_ratio():
    row = Row(name="a", unit="us", value=1.0, peer="b", peer_value=0.0)
    assert row.ratio is None
    assert row.difference == 1.0
