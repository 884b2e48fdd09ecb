"""Errors say what, which value, what is accepted, and the fix."""

import copy
import pickle
import re
from importlib import import_module
from pathlib import Path

import pytest

from popdist.errors import PopdistError, declare

ROOT = Path(__file__).parents[2]
PACKAGES = ("popdist", "popdist_torch", "popdist_tf", "popdist_onnx")


def test_the_text_has_all_four_parts_and_the_code():
    error = PopdistError("PD001", "it is wrong", value="x", accepted="1", hint="write 1")
    assert str(error).splitlines() == [
        "[PD001] it is wrong",
        "  seen:     'x'",
        "  accepted: 1",
        "  hint:     write 1",
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_errors_travel_between_processes(package):
    kinds = [kind for kind in vars(import_module(f"{package}.errors")).values() if _is_ours(kind)]
    assert kinds
    for kind in kinds:
        sent = kind("PD001", "it is wrong", value=(1, 2), accepted="3", hint="write 3")
        for got in (pickle.loads(pickle.dumps(sent)), copy.copy(sent)):  # noqa: S301 - our own
            assert type(got) is kind
            assert str(got) == str(sent)
            assert vars(got) == vars(sent)


def _is_ours(kind):
    return isinstance(kind, type) and issubclass(kind, PopdistError)


def test_an_undeclared_code_is_a_mistake_of_ours():
    with pytest.raises(KeyError):
        PopdistError("PD999", "never declared")


@pytest.mark.parametrize(
    "codes", [{"PD001": "another meaning"}, {"PDX": "words"}, {"PD998": ""}, {"PD304": "words"}]
)
def test_a_code_has_one_meaning_and_one_form(codes):
    with pytest.raises(ValueError, match="PD"):
        declare(codes)


def test_each_package_raises_the_codes_that_it_or_the_core_declares():
    everywhere, declared = set(), {}
    for package in PACKAGES:
        declared[package] = set(import_module(f"{package}.errors").CODES)
        sources = [path for path in (ROOT / package).rglob("*.py") if path.name != "errors.py"]
        found = {code for path in sources for code in re.findall(r"\bPD\d{3}\b", path.read_text())}
        # The door of the TensorFlow adapter stands in the core's folder.
        allowed = declared["popdist"] | declared[package] | {"PD401"}
        assert found <= allowed, f"{package} raises what it does not declare"
        everywhere |= found
    assert everywhere == set().union(*declared.values()), "a code that nothing raises is declared"


def test_no_two_packages_declare_the_same_code():
    codes = [code for package in PACKAGES for code in import_module(f"{package}.errors").CODES]
    assert len(codes) == len(set(codes))
