"""In-place operations on values that gradients need, which PopTorch's graphs do not have."""

import pytest
import torch
from torch import nn

import popdist_torch as poptorch
from popdist_torch.executor.in_place import SavedValues
from popdist_torch.ops.over_replicas import Replica, total_of


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
    assert not SavedValues(compiled=True).keeps


class InCode(nn.Module):
    """Changes the result of a sigmoid, which its gradient needs, by an operator of Python."""

    def __init__(self, *, inplace, averaged=False, meets=False):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(3, 4).double(), nn.Linear(4, 1).double()
        self.norm = nn.BatchNorm1d(4).double()
        self.inplace, self.averaged, self.meets = inplace, averaged, meets

    def forward(self, x, y):
        hidden = nn.functional.dropout(self.norm(self.first(x)), 0.25)
        hidden = torch.sigmoid(hidden)
        if self.averaged:  # torch copies no values inside of such transforms
            hidden = hidden * torch.func.grad(lambda v: v.square().sum())(torch.ones(4).double())
        if self.inplace:
            hidden *= 2.0
        else:
            hidden = hidden * 2.0
        if self.meets:
            hidden = hidden + total_of(Replica("test"), hidden.mean())
        return nn.functional.mse_loss(self.last(hidden), y)


@pytest.mark.parametrize("meets", [False, True])
def test_values_may_be_changed_by_operators(meets):
    trained = []
    for inplace in (False, True):
        model = InCode(inplace=inplace, meets=meets)
        options = poptorch.Options().replicationFactor(2).randomSeed(5)
        training = poptorch.trainingModel(
            model, options, optimizer=torch.optim.SGD(model.parameters(), lr=0.3)
        )
        generator = torch.Generator().manual_seed(4)
        for _ in range(3):
            x = torch.randn(8, 3, generator=generator).double()
            training(x, x[:, :1] * x[:, 1:2])
        assert training._training.saved.keeps is inplace
        trained.append(training.state_dict())
    for name, value in trained[0].items():
        torch.testing.assert_close(trained[1][name], value, atol=1e-14, rtol=0)


def test_a_model_that_cannot_be_tried_begins_again():
    """The first micro-batch runs a second time, from the same buffers and random numbers."""
    model, reference = InCode(inplace=False, averaged=True), InCode(inplace=False, averaged=True)
    options = poptorch.Options().randomSeed(5)
    training = poptorch.trainingModel(
        model, options, optimizer=torch.optim.SGD(model.parameters(), lr=0.3)
    )
    x, y = torch.randn(8, 3).double(), torch.randn(8, 1).double()
    training.compile(x, y)
    with training._replicas.streams.of(0):
        before = torch.get_rng_state()
    training(x, y)
    training.copyWeightsToHost()
    assert not training._training.saved.keeps
    torch.set_rng_state(before)
    reference(x, y).backward()
    torch.optim.SGD(reference.parameters(), lr=0.3).step()
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, atol=1e-14, rtol=0)


def test_torch_itself_refuses_such_a_model():
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        network(inplace=True)(torch.randn(2, 3).double()).sum().backward()
