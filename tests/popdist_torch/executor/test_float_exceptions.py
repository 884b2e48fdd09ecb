"""`enableFloatingPointExceptions`: exceptions of IEEE 754 are errors, and nothing else is."""

import pytest
import torch
from torch import nn

import popdist_torch as poptorch

ZERO, ONE = torch.zeros(3), torch.ones(3)


def run(function, *inputs, enabled):
    class Model(nn.Module):
        def forward(self, *x):
            return function(*x)

    options = poptorch.Options()
    options.Precision.enableFloatingPointExceptions(enabled)
    return poptorch.inferenceModel(Model(), options)(*inputs)


@pytest.mark.parametrize(
    ("function", "inputs", "kind"),
    [
        (torch.div, (ONE, ZERO), "division by zero"),
        (torch.mul, (ZERO, ONE / ZERO), "invalid"),
        (torch.sqrt, (-ONE,), "invalid"),
        (torch.gt, (ONE, ZERO / ZERO), "invalid"),
        (torch.exp, (3800 * ONE,), "overflow"),
    ],
)
def test_exceptions(function, inputs, kind):
    with pytest.raises(poptorch.Error, match=rf"PD350.*{kind}"):
        run(function, *inputs, enabled=True)
    torch.testing.assert_close(
        run(function, *inputs, enabled=False), function(*inputs), equal_nan=True
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.softmax(x.masked_fill(x > 0, -torch.inf), -1),
        lambda x: torch.nan_to_num(x / 2 + torch.nan),
        lambda x: torch.empty(1000).fill_(1.0)[:3] + x,
        lambda x: x == torch.nan,
        lambda x: x.long() // 1,
    ],
)
def test_other_numbers_are_fine(function):
    x = torch.tensor([0.0, 1.0, -2.0])
    assert torch.equal(run(function, x, enabled=True), function(x))


def test_a_backward_pass_is_checked():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(2))

        def forward(self, x):
            return poptorch.identity_loss(torch.sqrt(self.w * x), reduction="sum")

    options = poptorch.Options()
    options.Precision.enableFloatingPointExceptions(enabled=True)
    with pytest.raises(poptorch.Error, match=r"PD350"):
        poptorch.trainingModel(Model(), options)(ONE[:2])
