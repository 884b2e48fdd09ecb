"""The program's optimizer, whose steps an executor makes."""

import copy
import warnings

import pytest
import torch
from torch import nn

import popdist_torch as poptorch
from tests.popdist_torch import reference

X, Y = torch.randn(8, 3, dtype=torch.float64), torch.randn(8, 2, dtype=torch.float64)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

    def forward(self, x, y):
        return nn.functional.mse_loss(self.layers(x), y)


@pytest.fixture
def model():
    torch.manual_seed(1)
    return Net().double()


def plain_steps(model, optimizer, count, change=lambda _step: None):
    for step in range(count):
        change(step)
        optimizer.zero_grad()
        model(X, Y).backward()
        optimizer.step()


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.01),
        lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
        lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
        lambda p: torch.optim.RMSprop(p, lr=0.01),
        lambda p: torch.optim.Adagrad(p, lr=0.01),
        lambda p: torch.optim.RAdam(p, lr=0.01),
        torch.optim.Rprop,
    ],
)
def test_torchs_optimizers_do_what_they_do_in_a_plain_loop(model, make):
    plain = copy.deepcopy(model)
    training = poptorch.trainingModel(model, None, make(model.parameters()))
    for _ in range(4):
        training(X, Y)
    plain_steps(plain, make(plain.parameters()), 4)
    assert (reference.flat(model) == reference.flat(plain)).all()


def test_state_is_seen_through_the_programs_object(model):
    plain = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters())
    training = poptorch.trainingModel(model, None, optimizer)
    expected = torch.optim.Adam(plain.parameters())
    assert optimizer.state_dict()["state"] == {}
    for count in (1, 2):
        training(X, Y)
        plain_steps(plain, expected, 1)
        seen, wanted = optimizer.state_dict(), expected.state_dict()
        assert seen["state"][0]["step"] == count
        for index, state in wanted["state"].items():
            for key, value in state.items():
                assert torch.equal(seen["state"][index][key], value)


def test_training_resumes_from_a_state_dict(model):
    twin = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters())
    straight = poptorch.trainingModel(model, None, optimizer)
    straight(X, Y)
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    straight(X, Y)

    twin.load_state_dict(weights)
    resumed = torch.optim.Adam(twin.parameters())
    resumed.load_state_dict(state)
    poptorch.trainingModel(twin, None, resumed)(X, Y)
    assert (reference.flat(model) == reference.flat(twin)).all()


@pytest.mark.parametrize("told", [True, False])
def test_state_loaded_later_is_used_by_the_next_call(model, told):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    training = poptorch.trainingModel(model, None, optimizer)
    training(X, Y)
    start, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    training(X, Y)
    expected = reference.flat(model)
    training(X, Y)
    training.load_state_dict(start)
    optimizer.load_state_dict(state)
    if told:
        training.setOptimizer(optimizer)
    training(X, Y)
    assert (reference.flat(model) == expected).all()


@pytest.mark.parametrize("told", [True, False])
def test_a_changed_learning_rate_applies_from_the_next_call_on(model, told):
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    training = poptorch.trainingModel(model, None, optimizer)
    training(X, Y)
    training(X, Y)
    optimizer.param_groups[0]["lr"] = 0.01
    if told:
        training.setOptimizer(optimizer)
    training(X, Y)

    expected = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)

    def change(step):
        if step == 2:
            expected.param_groups[0]["lr"] = 0.01

    plain_steps(plain, expected, 3, change)
    assert (reference.flat(model) == reference.flat(plain)).all()


def test_another_optimizer_brings_its_own_state(model):
    plain = copy.deepcopy(model)
    first = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    training = poptorch.trainingModel(model, None, first)
    training(X, Y)
    training.setOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    training(X, Y)
    for _ in range(2):
        plain_steps(plain, torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9), 1)
    assert (reference.flat(model) == reference.flat(plain)).all()
    # The first keeps the state that it had when it was replaced.
    assert len(first.state_dict()["state"]) == 4


def test_schedulers_work_without_complaint(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    training = poptorch.trainingModel(model, None, optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            training(X, Y)
            scheduler.step()
            training.setOptimizer(optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.025


def test_frozen_and_left_out_parameters_stay(model):
    model.layers[0].weight.requires_grad_(requires_grad=False)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    chosen = [model.layers[0].weight, model.layers[2].bias]
    training = poptorch.trainingModel(model, None, torch.optim.SGD(chosen, lr=0.1))
    training(X, Y)
    changed = [
        not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)
    ]
    assert changed == [False, False, False, True]


def test_an_optimizer_of_another_model_is_an_error(model):
    other = nn.Linear(2, 2)
    training = poptorch.trainingModel(model, None, torch.optim.SGD(other.parameters(), lr=0.1))
    with pytest.raises(AssertionError, match="not parameters of the model"):
        training(X, Y)


def test_lbfgs_is_refused(model):
    training = poptorch.trainingModel(model, None, torch.optim.LBFGS(model.parameters()))
    with pytest.raises(AssertionError, match="LBFGS"):
        training(X, Y)


def test_step_hooks_run_once_per_update(model):
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    steps = []
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    training = poptorch.trainingModel(model, poptorch.Options().deviceIterations(2), optimizer)
    training(X, Y)
    assert len(steps) == 2
