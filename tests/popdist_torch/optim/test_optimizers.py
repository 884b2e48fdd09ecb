"""PopTorch's optimizers against formulas written out here, and against torch's."""

import copy
import io

import pytest
import torch
from torch import nn

import popdist_torch as poptorch
from tests.popdist_torch import reference
from tests.popdist_torch.optim import formulas

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
    assert seen == [8.0, 2.0, 2.0]


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


@pytest.mark.parametrize(
    ("settings", "raw"),
    [
        ({}, 8 * 4),  # A x R and the loss scaling
        ({"momentum": 0.9}, 8),
        ({"momentum": 0.9, "use_combined_accum": True, "velocity_scaling": 2.0}, 2),
    ],
)
@pytest.mark.parametrize("reduction", ["Mean", "Sum"])
def test_descent_clips_the_tensors_that_popart_clips(settings, raw, reduction):
    """Without momentum the raw sum of scaled gradients, with it the scaled velocity."""
    x, y = torch.randn(8, 3).double(), torch.randn(8, 2).double()
    model, limit, ls = Net().double(), 0.05, 8.0
    weights = [p.detach().numpy().copy() for p in model.parameters()]
    twin = copy.deepcopy(model)
    options = poptorch.Options().replicationFactor(2)
    options.Training.gradientAccumulation(2)
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType[reduction])
    optimizer = poptorch.optim.SGD(
        model.parameters(), lr=0.1, loss_scaling=ls, max_grad_norm=limit, **settings
    )
    training = poptorch.trainingModel(model, options, optimizer)
    state = {}
    divisor = 4 if reduction == "Mean" else 1
    scale = raw if "momentum" in settings or reduction == "Mean" else ls
    for _ in range(5):
        training(x, y)
        for parameter, weight in zip(twin.parameters(), weights, strict=True):
            parameter.data.copy_(torch.tensor(weight))
        twin.zero_grad()
        sum(twin(x[i : i + 2], y[i : i + 2]) for i in range(0, 8, 2)).backward()
        gradients = [p.grad.numpy() / divisor for p in twin.parameters()]
        m = settings.get("momentum", 0.0)
        formulas.sgd(state, weights, gradients, lr=0.1, m=m, limit=limit, scale=scale)
    for parameter, weight in zip(model.parameters(), weights, strict=True):
        assert abs(parameter.detach().numpy() - weight).max() < 1e-12


def test_attributes_are_variable_where_the_program_gave_them():
    weights = [nn.Parameter(torch.ones(1))]
    attrs = poptorch.optim.Adam(weights, lr=1e-3, loss_scaling=2.0).variable_attrs
    assert not attrs.isConstant("lr")
    assert not attrs.isConstant("loss_scaling")
    assert attrs.isConstant("betas")
    assert attrs.isConstant("max_grad_norm")
    attrs.markAsVariable("betas")
    attrs.markAsConstant("lr")
    assert (attrs.isConstant("betas"), attrs.isConstant("lr")) == (False, True)
    for call in (attrs.isConstant, attrs.markAsConstant, attrs.markAsVariable):
        with pytest.raises(AssertionError, match="no such attribute"):
            call("momentum")


@pytest.mark.parametrize("name", ["lr", "loss_scaling"])
def test_what_the_program_marked_as_constant_stays(name):
    model = Net()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, loss_scaling=2.0)
    optimizer.variable_attrs.markAsConstant(name)
    training = poptorch.trainingModel(model, None, optimizer)
    training(X, Y)
    training.setOptimizer(optimizer)
    optimizer.loss_scaling = 4.0
    optimizer.param_groups[0]["lr"] = 0.2
    with pytest.raises(AssertionError, match=f"{name} was marked as constant"):
        training.setOptimizer(optimizer)
    optimizer.variable_attrs.markAsVariable(name)
    training.setOptimizer(optimizer)


def test_unknown_settings_and_types_are_errors():
    weights = [nn.Parameter(torch.ones(1))]
    for kind in ("SGD", "Adam", "AdamW", "RMSprop", "LAMB"):
        make = getattr(poptorch.optim, kind)
        with pytest.raises(TypeError, match="no argument 'accum_typ'"):
            make(weights, lr=0.1, accum_typ=torch.half)
        with pytest.raises(AssertionError, match=r"torch\.float16 or torch\.float32"):
            make(weights, lr=0.1, accum_type=torch.float64)
        assert make(weights, lr=0.1, accum_type=torch.half).accum_type == torch.half
    for kind in (poptorch.optim.RMSprop, poptorch.optim.LAMB):
        with pytest.raises(TypeError, match="no argument 'max_grad_norm'"):
            kind(weights, max_grad_norm=1.0)
    with pytest.raises(ValueError, match="betas"):
        poptorch.optim.LAMB(weights, betas=(1.0, 0.9))


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "LAMB"])
def test_every_optimizer_drives_a_model(name):
    model = Net()
    other = copy.deepcopy(model)
    make = getattr(poptorch.optim, name)
    optimizer = make(model.parameters(), lr=0.1, loss_scaling=16.0)
    loss, ours = trained(model, optimizer, steps=5)
    plain = make(other.parameters(), lr=0.1)
    for _ in range(5):
        plain.zero_grad()
        expected = other(X, Y)
        expected.backward()
        plain.step()
    assert torch.equal(loss, expected)
    assert (ours == reference.flat(other)).all()
    assert (optimizer.state_dict()["ipu_state"] == {}) == (name == "SGD")


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "LAMB"])
def test_an_optimizer_with_a_scheduler_can_be_saved(name):
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = getattr(poptorch.optim, name)([weight], lr=0.1, loss_scaling=16.0)
    torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)  # wraps `step` of the object
    file = io.BytesIO()
    torch.save(optimizer, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert loaded.loss_scaling == 16.0
    (copied,) = loaded.param_groups[0]["params"]
    for one, its in ((optimizer, weight), (loaded, copied)):
        its.grad = torch.ones(2)
        one.step()
    assert torch.equal(copied, weight)
    assert not torch.equal(weight, torch.tensor([1.0, -2.0]))
