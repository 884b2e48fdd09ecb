from importlib import import_module
from pathlib import Path

import onnx
import pytest

from popdist_onnx import gradients, lowering
from popdist_onnx.gradients import registry as rules
from popdist_onnx.lowering import registry as lowerings


@pytest.mark.parametrize("folder", [gradients, lowering], ids=["gradients", "lowering"])
def test_the_table_names_the_module_of_each_operator(folder):
    for file in Path(folder.__file__).parent.glob("*.py"):
        import_module(f"{folder.__name__}.{file.stem}")
    if folder is gradients:
        assert set(rules._RULES) == set(rules._HOMES)
        written = {
            key: rule.function.__module__ for key, rule in rules._RULES.items() if rule.function
        }
        homes = rules._HOMES
    else:
        assert set(lowerings._LOWERINGS) == set(lowerings.OPERATORS)
        written = {name: one.__module__ for name, one in lowerings._LOWERINGS.items()}
        homes = lowerings.OPERATORS
    for key, module in written.items():
        assert module == f"{folder.__name__}.{homes[key]}"


def test_no_operator_stands_in_two_families():
    for families in (*rules.FAMILIES.values(), lowerings.FAMILIES):
        names = [name for words in families.values() for name in words.split()]
        assert len(names) == len(set(names))


def test_rules_are_of_operators_that_onnx_has():
    known = {one.name for one in onnx.defs.get_all_schemas_with_history() if not one.domain}
    assert rules.differentiable("") - known == set()


def test_what_has_no_rule_is_not_looked_for():
    assert rules.find_rule("", "DeformConv") is None
    assert rules.find_rule("another.domain", "MatMul") is None
