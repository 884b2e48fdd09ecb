"""Programs of SDK 2 with ``autocast`` train as torch does in the types of their model."""

import pytest
import torch

import popdist_torch as poptorch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layer = torch.nn.Linear(3, 1)

    @poptorch.autocast(enabled=True)
    def forward(self, x, y):
        with poptorch.autocast(enabled=False):
            loss = torch.nn.functional.mse_loss(self.layer(x), y)
        return loss if not self.training else poptorch.identity_loss(loss, "none")


@pytest.mark.parametrize("policy", [None, poptorch.autocasting.Policy([torch.matmul])])
def test_a_program_trains_as_in_torch(policy):
    x, y = torch.randn(4, 3), torch.randn(4, 1)
    model, plain = Model(), Model()
    model.autocast(enabled=True)
    options = poptorch.Options()
    options.Precision.autocastEnabled(autocast_enabled=True)
    options.Precision.autocastPolicy(policy or poptorch.autocasting.default)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    loss = poptorch.trainingModel(model, options, optimizer)(x, y)
    expected = torch.nn.functional.mse_loss(plain.layer(x), y)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    for weight, before in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(weight, before - 0.1 * before.grad)
