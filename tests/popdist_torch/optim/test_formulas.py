"""Fifty steps of every optimizer against its formula in numpy, and against torch's where equal."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from popdist_torch import optim
from tests.popdist_torch.optim import formulas

STEPS = 50
SHAPES = [(3, 4), (4,), (2, 2)]


def numbers(seed):
    generator = np.random.default_rng(seed)
    return [generator.normal(size=shape) for shape in SHAPES]


def by_optimizer(make, sign=1):
    weights = [nn.Parameter(torch.tensor(w)) for w in numbers(0)]
    optimizer = make(weights)
    for step in range(STEPS):
        for weight, gradient in zip(weights, numbers(step + 1), strict=True):
            weight.grad = torch.tensor(sign * gradient)
        optimizer.step()
    return [weight.detach().numpy() for weight in weights]


def by_formula(rule, **settings):
    weights, state = numbers(0), {}
    for step in range(STEPS):
        rule(state, weights, numbers(step + 1), **settings)
    return weights


def distance(one, other):
    return max(abs(a - b).max() for a, b in zip(one, other, strict=True))


CASES = {
    "sgd": (optim.SGD, {"lr": 0.1}, formulas.sgd, {"lr": 0.1}),
    "sgd, dampened": (
        optim.SGD,
        {"lr": 0.1, "dampening": 0.5, "weight_decay": 0.2},
        formulas.sgd,
        {"lr": 0.1, "dm": 0.5, "wd": 0.2},
    ),
    "sgd, momentum": (
        optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.2},
        formulas.sgd,
        {"lr": 0.1, "m": 0.9, "dm": 0.3, "wd": 0.2},
    ),
    "sgd, Nesterov": (
        optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.2},
        formulas.sgd,
        {"lr": 0.1, "m": 0.9, "nesterov": True, "wd": 0.2},
    ),
    "sgd, clipped": (
        optim.SGD,
        {"lr": 0.1, "max_grad_norm": 1.5, "weight_decay": 0.2},
        formulas.sgd,
        {"lr": 0.1, "limit": 1.5, "wd": 0.2},
    ),
    "sgd, velocity clipped": (
        optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "max_grad_norm": 1.5},
        formulas.sgd,
        {"lr": 0.1, "m": 0.9, "limit": 1.5},
    ),
    "adam": (optim.Adam, {"lr": 0.1}, formulas.adam, {"lr": 0.1}),
    "adam, clipped with its decay": (
        optim.Adam,
        {"weight_decay": 0.5, "max_grad_norm": 1.5, "betas": (0.8, 0.9)},
        formulas.adam,
        {"wd": 0.5, "limit": 1.5, "betas": (0.8, 0.9)},
    ),
    "adamw": (optim.AdamW, {"lr": 0.1}, formulas.adamw, {"lr": 0.1}),
    "adamw, clipped": (
        optim.AdamW,
        {"weight_decay": 0.5, "max_grad_norm": 1.5},
        formulas.adamw,
        {"wd": 0.5, "limit": 1.5},
    ),
    "lamb": (optim.LAMB, {"lr": 0.1}, formulas.lamb, {"lr": 0.1}),
    "lamb, uncorrected, bounded": (
        optim.LAMB,
        {"lr": 0.1, "bias_correction": False, "max_weight_norm": 0.5, "weight_decay": 0.0},
        formulas.lamb,
        {"lr": 0.1, "correct": False, "most": 0.5, "wd": 0.0},
    ),
    "rmsprop": (optim.RMSprop, {}, formulas.rmsprop, {}),
    "rmsprop, everything": (
        optim.RMSprop,
        {"momentum": 0.9, "centered": True, "weight_decay": 0.1, "eps": 1e-3},
        formulas.rmsprop,
        {"m": 0.9, "centered": True, "wd": 0.1, "eps": 1e-3},
    ),
    "rmsprop, TensorFlow's": (
        optim.RMSprop,
        {"momentum": 0.9, "centered": True, "eps": 1e-3, "use_tf_variant": True},
        formulas.rmsprop,
        {"m": 0.9, "centered": True, "eps": 1e-3, "tf": True},
    ),
    "rmsprop, TensorFlow's without momentum": (
        optim.RMSprop,
        {"use_tf_variant": True},
        formulas.rmsprop,
        {"tf": True},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_fifty_steps_follow_the_formula(case):
    kind, settings, rule, numbers = CASES[case]
    assert distance(by_optimizer(lambda p: kind(p, **settings)), by_formula(rule, **numbers)) < (
        1e-12
    )


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True}),
        ("SGD", {"lr": 0.1, "weight_decay": 0.1, "maximize": True}),
        ("Adam", {"weight_decay": 0.1, "maximize": True}),
        ("AdamW", {"foreach": True}),
        ("RMSprop", {"momentum": 0.9, "centered": True, "weight_decay": 0.1}),
        ("RMSprop", {"maximize": True}),
    ],
)
def test_torchs_rules_are_kept_where_they_are_equal(name, settings):
    ours = by_optimizer(lambda p: getattr(optim, name)(p, **settings))
    torchs = by_optimizer(lambda p: getattr(torch.optim, name)(p, **settings))
    assert distance(ours, torchs) < 1e-13


def test_clipping_while_climbing_counts_the_decay_with_its_sign():
    settings = {"weight_decay": 0.5, "max_grad_norm": 1.5}
    down = by_optimizer(lambda p: optim.Adam(p, **settings))
    up = by_optimizer(lambda p: optim.Adam(p, maximize=True, **settings), sign=-1)
    assert distance(down, up) < 1e-13


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])  # noqa: S301
def test_a_copy_goes_on_as_the_original_would(case, duplicate):
    kind, settings, _, _ = CASES[case]
    weights = [nn.Parameter(torch.tensor(w)) for w in numbers(0)]
    original = kind(weights, **settings)
    original.variable_attrs.markAsConstant("loss_scaling")
    for step in range(4):
        if step == 2:
            twin = duplicate(original)
            copies = [p for group in twin.param_groups for p in group["params"]]
        gradients = [torch.tensor(g) for g in numbers(step + 1)]
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient.clone()
        original.step()
        if step >= 2:
            for weight, gradient in zip(copies, gradients, strict=True):
                weight.grad = gradient.clone()
            twin.step()
    for weight, other in zip(weights, copies, strict=True):
        assert torch.equal(weight, other)
    assert twin.variable_attrs.marked == {"loss_scaling"}


@pytest.mark.parametrize("case", CASES)
def test_state_goes_through_a_state_dict(case):
    kind, settings, _, _ = CASES[case]
    weights = [nn.Parameter(torch.tensor(w)) for w in numbers(0)]
    optimizer = kind(weights, **settings)
    assert optimizer.state_dict()["ipu_state"] is None
    assert optimizer.state_dict()["ipu_param"] is None
    for weight, gradient in zip(weights, numbers(1), strict=True):
        weight.grad = torch.tensor(gradient)
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    others = [nn.Parameter(w.detach().clone()) for w in weights]
    other = kind(others, **settings)
    other.load_state_dict(state)
    for one in (weights, others):
        for weight, gradient in zip(one, numbers(2), strict=True):
            weight.grad = torch.tensor(gradient)
    optimizer.step()
    other.step()
    assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))
    if optimizer.state:
        assert all(isinstance(v, torch.Tensor) for v in state["ipu_state"].values())
        assert state["ipu_param"]["lossScaling_FLOAT"] == 1.0
