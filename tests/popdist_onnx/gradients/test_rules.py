"""Every rule on chosen cases: attributes, optional inputs, old and new opsets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import popdist_onnx
from popdist_onnx.graph.load import load
from popdist_onnx.transforms.autodiff import autodiff
from popdist_onnx.transforms.loss import set_loss
from tests.popdist_onnx.gradients import (
    cases_elementwise,
    cases_layout,
    cases_normalization_and_losses,
    cases_products_and_reductions,
    cases_windows,
)
from tests.popdist_onnx.gradients.harness import Case, check, model_of, session, weights_of

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


SINGULAR = {
    "one equal row": [[1, 2, 3], [1, 2, 3], [0, 1, 5]],
    "all rows equal": [[1, 2, 3]] * 3,
    "zeros": [[0, 0, 0]] * 3,
}


@pytest.mark.parametrize("name", SINGULAR)
def test_the_gradient_of_a_determinant_exists_without_an_inverse(name):
    """A determinant is linear in each number, so that a whole step shows its slope exactly."""
    x = np.asarray(SINGULAR[name], np.float32)
    case = Case("Det", [x], torch.linalg.det)
    proto, feeds = model_of(case)
    model = autodiff(set_loss(load(proto), "loss"), outputs=["in0"])
    _, found = session(model).run(None, feeds)
    steps = np.eye(9).reshape(9, 3, 3)
    slopes = [np.linalg.det(x + one) - np.linalg.det(x) for one in steps]
    wanted = np.reshape(slopes, (3, 3)) * weights_of(case, 0)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_determinants_of_wide_matrices_are_refused():
    case = Case("Det", [np.eye(17, dtype=np.float32)], torch.linalg.det)
    proto, _ = model_of(case)
    with pytest.raises(popdist_onnx.popart_exception, match="17 rows") as caught:
        autodiff(set_loss(load(proto), "loss"), outputs=["in0"])
    assert caught.value.code == "PD525"
