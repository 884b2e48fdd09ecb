"""ONNX's own backend suite: a quarter of its cases; all with ``POPDIST_EXHAUSTIVE=1``."""

import onnx
import pytest

from tests.popdist_onnx.conformance.backend_reasons import FORWARD, GRADIENT, RELEASE
from tests.popdist_onnx.conformance.backend_suite import all_cases, forward, gradients, reason
from tests.popdist_onnx.conformance.case import EXHAUSTIVE

SHARE = 1 if EXHAUSTIVE else 4

CASES = {case.name: case for case in all_cases() if case.number % SHARE == 0}

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        not onnx.__version__.startswith(RELEASE),
        reason=f"the suite of onnx {RELEASE} was measured; each release has cases of its own",
    ),
]


def check(case, verdict, table, fine):
    expected = reason(case, table)
    known = () if expected is None else expected[0].split(", ")
    assert verdict.word in (*fine, *known), f"{verdict.word}: {verdict.detail}"


@pytest.mark.parametrize("name", CASES)
def test_forward_is_what_the_suite_says(name):
    # Cases that ONNX Runtime itself does not pass are not judged.
    check(CASES[name], forward(CASES[name]), FORWARD, ("same", "unjudged"))


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_differences(name):
    fine = ("same", "zero", "no float", "not finite", "unjudged")
    check(CASES[name], gradients(CASES[name]), GRADIENT, fine)


def test_a_product_with_a_matrix_whose_lengths_only_a_run_tells_has_a_gradient():
    [case] = (one for one in all_cases() if one.name == "test_affine_grid_3d_expanded")
    verdict = gradients(case)
    assert verdict.word == "same", verdict.detail


@pytest.mark.parametrize("table", [FORWARD, GRADIENT])
def test_each_reason_is_of_a_case(table):
    for patterns, _, _ in table:
        for one in patterns.split():
            assert any(reason(case, [(one, "", "")]) for case in all_cases()), one
