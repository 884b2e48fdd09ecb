"""What is stated of models whose weights are trained again, by another optimizer."""

import hashlib

import numpy as np
import pytest

from popdist.checks import trained


class Weight:
    """Something that holds values, as a parameter does."""

    def __init__(self, value):
        self.value = np.full(2, value)


@pytest.fixture(autouse=True)
def end(monkeypatch):
    """The statement of this process, as one of several."""
    monkeypatch.setattr(trained, "is_several", lambda: True)
    monkeypatch.setattr(trained, "END", trained._End())
    return trained.END


def model(weights):
    made = trained.Trained("Net", weights.items, lambda weight: weight.value)
    made.claim()
    return made


def expected(value):
    return hashlib.blake2b(np.full(2, value).tobytes(), digest_size=8).hexdigest()


@pytest.mark.parametrize("first", ["deleted", "claimed"])
def test_the_newest_states_a_weight_and_an_earlier_one_states_the_others(end, first):
    weights = {"a": Weight(1.0), "b": Weight(2.0)}
    earlier = model(weights)
    if first == "deleted":
        del earlier
        assert set(end._stated) == {"a of Net", "b of Net"}
        later = model({"a": weights["a"]})
    else:
        later = model({"a": weights["a"]})
        del earlier
    assert end._stated == {"b of Net": expected(2.0)}
    weights["a"].value = np.full(2, 3.0)
    del later
    assert end._stated == {"b of Net": expected(2.0), "a of Net (number 2)": expected(3.0)}


def test_weights_that_are_stated_together_have_one_digest(end, monkeypatch):
    monkeypatch.setattr(trained, "_MOST", 1)
    weights = {name: Weight(float(index)) for index, name in enumerate("abc")}
    del [model(weights)][0]
    joined = (expected(1.0) + expected(2.0)).encode()
    together = hashlib.blake2b(joined, digest_size=8).hexdigest()
    assert end._stated == {"a of Net": expected(0.0), "other weights of Net": together}
    later = model({"c": weights["c"]})
    assert set(end._stated) == {"a of Net"}
    del later


def test_a_weight_in_the_place_of_one_that_is_gone_takes_nothing_away(end):
    gone = Weight(1.0)
    del [model({"a": gone})][0]
    entry = end._newest.pop(id(gone))
    del gone
    other = Weight(2.0)
    end._newest[id(other)] = entry
    end.claim("b of Other", other)
    assert end._stated == {"a of Net": expected(1.0)}
