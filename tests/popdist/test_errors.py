"""Errors say what, which value, what is accepted, and the fix."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from popdist import errors
from popdist.errors import PopdistError, declare

ROOT = Path(__file__).parents[2]


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


@pytest.mark.parametrize("codes", [{"PD001": "another meaning"}, {"PDX": "words"}, {"PD998": ""}])
def test_a_code_has_one_meaning_and_one_form(codes):
    with pytest.raises(ValueError, match="PD"):
        declare(codes)


def test_each_package_raises_the_codes_that_it_or_the_core_declares():
    for package in ("popdist", "popdist_torch", "popdist_tf", "popdist_onnx"):
        own = import_module(f"{package}.errors").CODES
        sources = [path for path in (ROOT / package).rglob("*.py") if path.name != "errors.py"]
        found = {code for path in sources for code in re.findall(r"\bPD\d{3}\b", path.read_text())}
        # The door of the TensorFlow adapter stands in the core's folder.
        allowed = {*errors.CODES, *own, *({"PD401"} if package == "popdist" else ())}
        assert found <= allowed, package
        assert set(own) <= found, f"{package} declares what nothing raises"


def test_no_two_packages_declare_the_same_code():
    codes = [
        code
        for package in ("popdist", "popdist_torch", "popdist_tf", "popdist_onnx")
        for code in import_module(f"{package}.errors").CODES
    ]
    assert len(codes) == len(set(codes))
