"""The lists of the SDK's modules cannot lie: each name is followed, each refusal tried."""

from importlib.util import find_spec

import pytest

from popdist.errors import PopdistError
from popdist.sdk.finder import ALIASES
from popdist.sdk.surface import LISTS, load, missing, published
from popdist.sdk.surface.answers import Placeholder
from popdist.sdk.surface.vocabulary import refused, surface, works
from popdist_tf.errors import EstimatorGoneError
from tests.popdist.sdk.walk import Absent, resolve, use

SDK = sorted(ALIASES)


def test_each_module_has_a_list_that_names_it():
    assert set(LISTS) == set(ALIASES)
    for sdk, ours in ALIASES.items():
        listed = load(sdk)
        assert (listed.sdk, listed.ours) == (sdk, ours)
        assert listed.entries


@pytest.mark.parametrize("sdk", SDK)
def test_what_is_listed_as_there_is_there(sdk):
    listed = load(sdk)
    absent = [
        entry.name
        for entry in listed.entries
        if entry.status != "refused" and _is_absent(listed.ours, entry.name)
    ]
    assert not absent


def _is_absent(ours, name):
    try:
        return isinstance(resolve(ours, name), Placeholder)
    except Absent:
        return True
    except EstimatorGoneError:
        return find_spec("tensorflow_estimator") is not None


@pytest.mark.parametrize("sdk", SDK)
def test_what_is_listed_as_refused_refuses_with_a_way_out(sdk):
    listed = load(sdk)
    wrong = {}
    for entry in listed.entries:
        if entry.status != "refused":
            continue
        try:
            error = use(resolve(listed.ours, entry.name))
        except Absent:
            wrong[entry.name] = "it is absent"
            continue
        expected = resolve(*entry.error.split(".", 1)) if entry.error else NotImplementedError
        if not (isinstance(error, expected) and isinstance(error, PopdistError) and error.hint):
            wrong[entry.name] = repr(error)
    assert not wrong


@pytest.mark.parametrize("sdk", SDK)
def test_reasons_are_sentences_for_a_page(sdk):
    for entry in load(sdk).entries:
        if entry.status == "refused":
            assert entry.reason
            assert entry.instead
        if entry.status == "accepted without effect":
            assert entry.reason
        assert "|" not in entry.reason + entry.instead
        assert "\n" not in entry.reason + entry.instead


def test_few_names_of_tensorflow_are_refused():
    listed = load("tensorflow.python.ipu").entries
    assert sum(entry.status == "refused" for entry in listed) <= 70


def test_a_name_is_listed_once():
    with pytest.raises(ValueError, match="twice for popart: Builder"):
        surface("popart", "popdist_onnx", works("Builder"), refused("no", "Builder", instead="it"))


def test_what_stands_below_a_refused_name_is_refused_with_it():
    listed = surface("a", "b", works("C", "C.d"), refused("no", "sub", instead="it"))
    assert listed.find("sub.deep.name").name == "sub"
    assert listed.find("C.unknown") is None
    assert listed.find("other") is None


def test_a_name_of_ours_or_of_the_sdk_is_placed_alike():
    assert published("popdist_onnx", "Builder") == ("popart", "Builder")
    assert published("popdist_onnx.horovod", "init") == ("horovod.popart", "init")
    assert published("tensorflow.python.ipu.utils", "f") == ("tensorflow.python.ipu", "utils.f")
    assert published("popdist_tf", "f") is None


def test_a_placeholder_can_be_passed_around_and_raises_when_it_is_used():
    refusal = next(
        e for e in load("poptorch").entries if e.status == "refused" and "." not in e.name
    )
    held = missing("popdist_torch", refusal.name)
    assert held
    assert repr(held) == f"<refused poptorch.{refusal.name}>"
    assert not isinstance(3, held)
    assert not hasattr(held, "__wrapped__")
    for action in (
        held,
        lambda: held.attribute,
        lambda: held["item"],
        lambda: _subclass(held),
        lambda: setattr(held, "attribute", 1),
        held.__enter__,
    ):
        with pytest.raises(NotImplementedError, match="not available on a host") as caught:
            action()
        assert caught.value.code == "PD450"
        assert refusal.instead in str(caught.value)


def _subclass(held):
    class Mine(held):
        pass

    return Mine


@pytest.mark.parametrize(
    ("module", "name", "near"),
    [
        ("popdist_torch", "Optins", "Options"),
        ("popdist_onnx", "Bilder", "Builder"),
        ("popdist_onnx.horovod", "ranc", "rank"),
        ("popdist_tf.ipu", "ipu_stratgy", "ipu_strategy"),
    ],
)
def test_an_unknown_name_gets_the_nearest(module, name, near):
    with pytest.raises(AttributeError, match=f"did you mean '{near}'"):
        missing(module, name)
