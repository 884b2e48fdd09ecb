from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.sampling import Samples, drift, interleave, slowest, turns

SECONDS = st.floats(1e-9, 1e6)


@given(st.lists(SECONDS, min_size=1))
def test_minimum_and_median_are_samples_in_order(seconds):
    samples = Samples(tuple(seconds))
    assert samples.minimum == min(seconds)
    assert samples.minimum <= samples.median <= max(seconds)
    below = sum(second <= samples.median for second in seconds)
    above = sum(second >= samples.median for second in seconds)
    assert 2 * below >= len(seconds) <= 2 * above


def test_no_samples_are_no_result():
    with pytest.raises(ValueError, match="at least one"):
        Samples(())


@given(st.lists(st.text(), unique=True), st.integers(0, 1000))
def test_every_turn_has_every_contender_once(names, repetition):
    assert sorted(turns(names, repetition)) == sorted(names)


@given(st.integers(2, 6))
def test_over_all_repetitions_everybody_is_first_and_last_equally_often(number):
    names = [str(name) for name in range(number)]
    orders = [turns(names, repetition) for repetition in range(2 * number)]
    for place in (0, -1):
        often = Counter(order[place] for order in orders)
        assert len(often) == number or number % 2 == 0
        assert max(often.values()) - min(often.values()) <= 2


def test_nobody_always_follows_the_same_neighbour():
    orders = [turns("abc", repetition) for repetition in range(6)]
    followers = {order[order.index("a") + 1] for order in orders if order[-1] != "a"}
    assert followers == {"b", "c"}


@given(st.lists(st.text(), unique=True), st.integers(0, 8))
def test_interleaving_samples_all_equally_and_in_turns(names, repetitions):
    calls = []

    def contender(name):
        return lambda: calls.append(name) or float(len(calls))

    seconds = interleave({name: contender(name) for name in names}, repetitions)
    assert list(seconds) == names
    assert all(len(of_one) == repetitions for of_one in seconds.values())
    for repetition in range(repetitions):
        turn = calls[repetition * len(names) : (repetition + 1) * len(names)]
        assert turn == turns(names, repetition)


@given(st.integers(1, 20).flatmap(
    lambda n: st.lists(st.lists(SECONDS, min_size=n, max_size=n), min_size=1, max_size=8)
))  # fmt: skip
def test_a_collective_takes_as_long_as_its_slowest_rank(ranks):
    joined = slowest(ranks)
    assert len(joined) == len(ranks[0])
    for index, seconds in enumerate(joined):
        assert seconds in [rank[index] for rank in ranks]
        assert all(seconds >= rank[index] for rank in ranks)


def test_ranks_with_unequal_numbers_of_samples_are_a_mistake():
    with pytest.raises(ValueError, match="shorter"):
        slowest([[1.0, 2.0], [1.0]])


@given(st.lists(SECONDS, min_size=1), st.floats(1e-3, 1e3))
def test_drift_is_at_least_one_and_does_not_depend_on_the_unit(minima, scale):
    assert drift(minima) >= 1
    assert drift([m * scale for m in minima]) == pytest.approx(drift(minima))
