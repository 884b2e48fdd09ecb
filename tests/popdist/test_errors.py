"""Errors say what, which value, what is accepted, and the fix."""

import pytest

from popdist.errors import CODES, PopdistError


def test_the_text_has_all_four_parts_and_the_code():
    error = PopdistError("PD001", "it is wrong", value="x", accepted="1", hint="write 1")
    assert str(error).splitlines() == [
        "[PD001] it is wrong",
        "  seen:     'x'",
        "  accepted: 1",
        "  hint:     write 1",
    ]


def test_an_undeclared_code_is_a_mistake_of_ours():
    with pytest.raises(KeyError):
        PopdistError("PD999", "never declared")


def test_codes_are_well_formed_and_explained():
    assert all(code[:2] == "PD" and code[2:].isdigit() and text for code, text in CODES.items())
