"""A declared setting accepts values of its types, and says which those are."""

from enum import Enum, IntEnum

import pytest

from popdist.settings import Setting


class Colour(Enum):
    RED = 1
    BLUE = 2


class Number(IntEnum):
    ONE = 1


COUNT = Setting(1, (int,), least=1)
DEVICES = Setting([], (int, list, tuple), items=int)


@pytest.mark.parametrize(
    ("setting", "accepted", "refused"),
    [
        (Setting(0, (int,)), [0, -3], [True, 1.0, "1", None, Number.ONE]),
        (Setting(default=False, types=(bool,)), [True, False], [0, 1, None]),
        (Setting(0.5, (float,)), [0.5], [1, True]),
        (Setting(Colour.RED, (Colour,)), [Colour.BLUE], [1, "RED", Number.ONE, True]),
        (Setting(Colour.RED, (Colour, bool)), [Colour.RED, True], [1, None]),
        (COUNT, [1, 7], [0, -1, True]),
        (DEVICES, [0, [], [1, 2], (3,)], [[1.0], [True], ["a"], (Number.ONE,), {1: 2}]),
        (Setting(list, (list,)), [[], ["a", 1]], [(), "a"]),
    ],
)
def test_values_of_the_declared_types_are_accepted(setting, accepted, refused):
    assert [value for value in accepted if not setting.accepts(value)] == []
    assert [value for value in refused if setting.accepts(value)] == []


def test_what_is_accepted_is_said():
    assert DEVICES.accepted == "int or list of int or tuple of int"
    assert COUNT.accepted == "int, 1 or more"
    assert Setting(Colour.RED, (Colour,)).accepted == "Colour.RED, Colour.BLUE"


def test_every_object_has_a_default_of_its_own():
    for setting in (Setting([1], (list,)), Setting(list, (list,))):
        first, second = setting.fresh(), setting.fresh()
        assert first == second
        assert first is not second
