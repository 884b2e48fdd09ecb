"""Patterns are kept; loggers take PopART's level names."""

import logging

import pytest

from popdist_onnx.errors import popart_exception
from popdist_onnx.types.enums import Patterns, PatternsLevel, getLogger


def test_patterns_are_switched_by_name_or_attribute():
    patterns = Patterns(PatternsLevel.Default)
    assert patterns.InPlace
    patterns.InPlace = False
    assert not patterns.isPatternEnabled("InPlace")
    assert patterns.enablePattern("InPlace", value=True) is patterns
    assert patterns.InPlace
    with pytest.raises(popart_exception, match="switched by a bool"):
        patterns.InPlace = "yes"


def test_a_list_of_patterns_switches_the_others_off():
    patterns = Patterns(["PostNRepl"])
    assert patterns.PostNRepl
    assert not patterns.InPlace


def test_runtime_asserts_are_on_until_switched_off():
    patterns = Patterns()
    assert patterns.runtimeAssertsOn()
    assert not patterns.enableRuntimeAsserts(value=False).runtimeAssertsOn()


def test_levels_reach_the_standard_library(caplog):
    ours = getLogger("types-test")
    ours.setLevel("WARN")
    ours.info("hidden")
    ours.warn("seen")
    ours.setLevel("TRACE")
    ours.trace("seen %d", 2)
    assert [record.getMessage() for record in caplog.records] == ["seen", "seen 2"]
    ours.setLevel("OFF")
    assert logging.getLogger("popdist.onnx.types-test").level > logging.CRITICAL


def test_a_level_that_does_not_exist():
    with pytest.raises(popart_exception, match="TRACE, DEBUG, INFO, WARN, ERR, CRITICAL, OFF"):
        getLogger().setLevel("LOUD")
