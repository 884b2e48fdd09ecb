import copy

import pytest

from popdist_torch.options.storage import OptionsDict


def make(**values):
    return OptionsDict(**({"count": 1, "ratio": 0.5, "name": "a", "on": True} | values))


def test_keys_are_attributes():
    options = make()
    options.count = 4
    assert options.count == 4
    assert options("count") == 4


@pytest.mark.parametrize("change", [{"nope": 1}])
def test_unknown_keys_are_rejected(change):
    with pytest.raises(AssertionError, match="Invalid option"):
        make().set(**change)


@pytest.mark.parametrize(
    ("key", "value"), [("count", "4"), ("count", 1.5), ("count", True), ("on", 1), ("name", None)]
)
def test_a_value_keeps_its_type(key, value):
    with pytest.raises(AssertionError, match="Unexpected type"):
        make().set(**{key: value})


def test_a_whole_number_is_a_ratio_too():
    options = make()
    options.ratio = 1
    assert options.ratio == 1


def test_create_or_set_creates_and_then_keeps_the_type():
    options = make()
    options.createOrSet(fresh=3)
    assert options.exists("fresh")
    with pytest.raises(AssertionError, match="Unexpected type"):
        options.createOrSet(fresh="x")
    options.deleteIfExists("fresh")
    options.deleteIfExists("fresh")
    assert not options.exists("fresh")


def test_reading_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nope"):
        _ = make().nope
    with pytest.raises(AssertionError, match="Invalid option"):
        make()("nope")


def test_frozen_options_cannot_change_in_any_way():
    options = make()
    options._freeze()
    for change in (
        lambda: options.set(count=2),
        lambda: options.createOrSet(count=2),
        lambda: options.createOrSet(fresh=2),
        lambda: options.deleteIfExists("count"),
        lambda: setattr(options, "count", 2),
    ):
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            change()
    assert options.count == 1


def test_a_copy_is_never_frozen_and_shares_nothing():
    options = make(table={})
    options._freeze()
    twin = copy.deepcopy(options)
    twin.count = 9
    twin.table["key"] = 1
    assert (options.count, options.table) == (1, {})


def test_private_attributes_come_before_the_base_constructor():
    class Early(OptionsDict):
        def __init__(self):
            self._own = 1
            super().__init__(count=1)

    class Late(OptionsDict):
        def __init__(self):
            super().__init__(count=1)
            self._own = 1

    assert Early()._own == 1
    with pytest.raises(AttributeError, match="Invalid private attribute"):
        Late()


def test_update_merges_and_refuses_contradictions():
    assert make().update({"other": 1})["other"] == 1
    with pytest.raises(AssertionError, match="count has two values"):
        make().update({"count": 2})


def test_the_class_of_options_can_be_exchanged():
    class Special(OptionsDict):
        def shout(self):
            return self.name.upper()

    options = make()
    options.__class__ = Special
    assert options.shout() == "A"
