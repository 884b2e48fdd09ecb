"""Every rule on chosen cases: attributes, optional inputs, old and new opsets."""

from __future__ import annotations

import pytest

from tests.popdist_onnx.gradients import (
    cases_elementwise,
    cases_layout,
    cases_normalization_and_losses,
    cases_products_and_reductions,
    cases_windows,
)
from tests.popdist_onnx.gradients.harness import check

CASES = [
    *cases_elementwise.CASES,
    *cases_layout.CASES,
    *cases_normalization_and_losses.CASES,
    *cases_products_and_reductions.CASES,
    *cases_windows.CASES,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op_type}-{case.opset}")
def test_gradient_equals_torchs(case):
    check(case)
