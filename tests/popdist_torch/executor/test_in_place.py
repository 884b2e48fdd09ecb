"""In-place operations on values that gradients need, which PopTorch's graphs do not have."""

import pytest
import torch
from torch import nn

import popdist_torch as poptorch
from popdist_torch.executor.in_place import SavedValues


def network(*, inplace, between=nn.Sigmoid):
    """A sigmoid's gradient needs its result, which the next layer changes."""
    torch.manual_seed(1)
    clamped = nn.Hardtanh(0.4, 0.6, inplace=inplace)
    return nn.Sequential(nn.Linear(3, 4), between(), clamped, nn.Linear(4, 1)).double()


class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        return nn.functional.mse_loss(self.model(x), y)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_values_that_gradients_need_may_be_changed(accumulation):
    reference = network(inplace=False)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.3)
    trained = network(inplace=True)
    options = poptorch.Options().deviceIterations(2)
    options.Training.gradientAccumulation(accumulation)
    training = poptorch.trainingModel(
        WithLoss(trained), options, optimizer=poptorch.optim.SGD(trained.parameters(), lr=0.3)
    )
    for _ in range(2):
        x, y = torch.randn(8 * accumulation, 3).double(), torch.randn(8 * accumulation, 1).double()
        training(x, y)
        for part in zip(x.chunk(2), y.chunk(2), strict=True):
            optimizer.zero_grad()
            nn.functional.mse_loss(reference(part[0]), part[1]).backward()
            optimizer.step()
    training.copyWeightsToHost()
    for ours, theirs in zip(trained.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)


def test_only_models_that_change_what_gradients_need_pay_for_copies():
    for between, keeps in ((nn.Sigmoid, True), (nn.Identity, False)):
        model = network(inplace=True, between=between)
        training = poptorch.trainingModel(
            WithLoss(model), optimizer=torch.optim.SGD(model.parameters(), lr=0.1)
        )
        training(torch.randn(2, 3).double(), torch.randn(2, 1).double())
        assert training._training.saved.keeps is keeps
    assert not SavedValues(network(inplace=False)).keeps
    assert not SavedValues(network(inplace=True), compiled=True).keeps


def test_torch_itself_refuses_such_a_model():
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        network(inplace=True)(torch.randn(2, 3).double()).sum().backward()
