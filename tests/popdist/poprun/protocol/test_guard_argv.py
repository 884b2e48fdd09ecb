"""Lists of numbers in the settings of guards; `plan/test_command.py` tests the words themselves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popdist.poprun.protocol.guard_argv import format_list, parse_list


@given(st.sets(st.integers(0, 300)))
def test_lists_are_read_as_they_are_written(numbers):
    assert parse_list(format_list(numbers)) == sorted(numbers)


@pytest.mark.parametrize("text", ["", "\n", "x", "1-", "-3"])
def test_what_is_no_list_is_empty(text):
    assert parse_list(text) == []


def test_neighbours_are_joined():
    assert format_list([0, 2, 3, 4, 6]) == "0,2-4,6"
