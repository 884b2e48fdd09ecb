"""PopTorch's optimizers against formulas written out here, and against torch's."""

import copy

import pytest
import torch
from torch import nn

import popdist_torch as poptorch
from tests.popdist_torch import reference

GRADIENTS = [1.0, 0.5, -0.2]


def run(make):
    """One weight, starting at 1, fed known gradients."""
    weight = nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = make([weight])
    seen = []
    for gradient in GRADIENTS:
        weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
        seen.append(weight.item())
    return seen


def test_dampening_is_poparts():
    """Numbers of the reference; torch gives 0.9, 0.785, 0.6915."""
    seen = run(lambda p: poptorch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5))
    assert seen == pytest.approx([0.95, 0.88, 0.827], abs=1e-12)


def test_dampening_counts_without_momentum():
    seen = run(lambda p: poptorch.optim.SGD(p, lr=0.1, dampening=0.5, weight_decay=0.2))
    weight, expected = 1.0, []
    for gradient in GRADIENTS:
        weight = weight * (1 - 0.1 * 0.5 * 0.2) - 0.1 * 0.5 * gradient
        expected.append(weight)
    assert seen == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "weight_decay": 0.1},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        {"weight_decay": 0.1, "maximize": True},
    ],
)
def test_without_dampening_descent_is_torchs(settings):
    ours = run(lambda p: poptorch.optim.SGD(p, lr=0.1, **settings))
    assert ours == pytest.approx(run(lambda p: torch.optim.SGD(p, lr=0.1, **settings)), abs=1e-14)


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_adam_is_torchs(name):
    settings = {"lr": 0.1, "weight_decay": 0.1, "eps": 1e-6}
    ours = run(lambda p: getattr(poptorch.optim, name)(p, **settings))
    assert ours == run(lambda p: getattr(torch.optim, name)(p, **settings))


def test_adamw_corrects_bias_either_way():
    assert run(lambda p: poptorch.optim.AdamW(p, bias_correction=False)) == run(
        poptorch.optim.AdamW
    )


def test_amsgrad_is_refused():
    for kind in (poptorch.optim.Adam, poptorch.optim.AdamW):
        with pytest.raises(ValueError, match="amsgrad"):
            kind([nn.Parameter(torch.ones(1))], amsgrad=True)


@pytest.mark.parametrize("setting", ["loss_scaling", "max_grad_norm"])
@pytest.mark.parametrize("value", [0, -1.0, "2", True])
def test_settings_must_be_positive(setting, value):
    with pytest.raises(AssertionError, match=setting):
        poptorch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1, **{setting: value})


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x, y):
        return nn.functional.mse_loss(self.layer(x), y)


X, Y = torch.randn(8, 3), torch.randn(8, 2)


def trained(model, optimizer, steps=3):
    training = poptorch.trainingModel(model, None, optimizer)
    for _ in range(steps):
        loss = training(X, Y)
    return loss, reference.flat(model)


def test_loss_scaling_by_a_power_of_two_changes_nothing():
    model = Net()
    other = copy.deepcopy(model)
    plain = trained(model, poptorch.optim.SGD(model.parameters(), lr=0.1))
    scaled = trained(other, poptorch.optim.SGD(other.parameters(), lr=0.1, loss_scaling=1024.0))
    assert torch.equal(plain[0], scaled[0])
    assert (plain[1] == scaled[1]).all()


def test_loss_scaling_reaches_the_backward_pass_and_can_change():
    seen = []

    class Watched(Net):
        def forward(self, x, y):
            loss = super().forward(x, y)
            loss.register_hook(lambda gradient: seen.append(gradient.item()))
            return loss

    model = Watched()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, loss_scaling=8.0)
    training = poptorch.trainingModel(model, None, optimizer)
    training(X, Y)
    optimizer.loss_scaling = 2.0
    training(X, Y)
    training.setOptimizer(optimizer)
    training(X, Y)
    assert seen == [8.0, 8.0, 2.0]


def test_clipping_limits_the_norm_of_all_gradients():
    model = Net()
    other = copy.deepcopy(model)
    _, ours = trained(model, poptorch.optim.SGD(model.parameters(), lr=0.1, max_grad_norm=0.05))
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        other(X, Y).backward()
        assert nn.utils.clip_grad_norm_(other.parameters(), 0.05) > 0.05
        optimizer.step()
    assert abs(ours - reference.flat(other)).max() < 1e-7
