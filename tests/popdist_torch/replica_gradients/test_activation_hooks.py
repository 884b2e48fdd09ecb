"""Hooks of activations: those that depend on the size of gradients are refused."""

import copy
import pickle

import pytest
import torch
from torch import nn

import popdist_torch
from popdist_torch.errors import GradientError
from popdist_torch.replica_gradients.activation_hooks import ACTIVATION_HOOKS

MASK = torch.tensor([1.0, 0.0, 1.0, 1.0])
BOUND = 0.01


@pytest.fixture(autouse=True)
def started():
    ACTIVATION_HOOKS.start()


def clamp_in_place(gradient):
    gradient.clamp_(-BOUND, BOUND)


def half_in_place(gradient):
    gradient.mul_(0.5)


def bounded_norm(gradient):
    norm = gradient.norm()
    return gradient * (BOUND / norm) if norm > BOUND else gradient


RIGHT = {
    "factor": lambda gradient: gradient * 0.3,
    "mask": lambda gradient: gradient * MASK,
    "projection": lambda gradient: gradient - gradient.mean(1, keepdim=True),
    "zeros": torch.zeros_like,
    "reversed": torch.neg,
    "only positive": torch.relu,
    "rounded": lambda gradient: gradient.bfloat16().float(),
    "without NaN": torch.nan_to_num,
    "random mask": lambda gradient: nn.functional.dropout(gradient, 0.5),
    "in place": half_in_place,
    "bound out of reach": lambda gradient: gradient.clamp(-100, 100),
}
WRONG = {
    "clamp": lambda gradient: gradient.clamp(-BOUND, BOUND),
    "clamp in place": clamp_in_place,
    "sign": torch.sign,
    "normalized": lambda gradient: gradient / gradient.norm(),
    "norm": bounded_norm,
    "threshold": lambda gradient: torch.where(gradient.abs() > BOUND, gradient, 0),
    "noise": lambda gradient: gradient + BOUND * torch.randn_like(gradient),
}


def of_module(hook):
    return lambda _module, given, _out: (hook(given[0]),)


def before_module(hook):
    return lambda _module, out: (hook(out[0]),)


def gradient_of(hook, *, place="tensor", factor=2.0, passes=2):
    """The first layer's gradient after backward passes of a network with a hook."""
    torch.manual_seed(1)
    first, last = nn.Linear(4, 4), nn.Linear(4, 2)
    if place == "module":
        last.register_full_backward_hook(of_module(hook))
    if place == "before module":
        last.register_full_backward_pre_hook(before_module(hook))
    for _ in range(passes):
        hidden = first(torch.randn(5, 4))
        if place == "tensor":
            hidden.register_hook(hook)
        with ACTIVATION_HOOKS.in_pass(factor):
            last(hidden).square().mean().backward()
    return first.weight.grad


@pytest.mark.parametrize("name", RIGHT)
def test_hooks_that_keep_multiples_run_as_without_a_check(name):
    found = gradient_of(RIGHT[name])
    torch.testing.assert_close(found, gradient_of(RIGHT[name], factor=1.0), rtol=0, atol=0)


@pytest.mark.parametrize("name", WRONG)
def test_hooks_that_depend_on_the_size_are_refused_with_their_place(name):
    with pytest.raises(GradientError) as caught:
        gradient_of(WRONG[name])
    assert caught.value.code == "PD334"
    if hasattr(WRONG[name], "__code__"):
        assert "test_activation_hooks.py:" in str(caught.value)


@pytest.mark.parametrize("place", ["module", "before module"])
def test_hooks_of_modules_are_asked_too(place):
    gradient_of(RIGHT["factor"], place=place)
    with pytest.raises(GradientError, match="PD334"):
        gradient_of(WRONG["clamp"], place=place)


def test_hooks_in_one_process_are_not_refused():
    gradient_of(WRONG["clamp"], factor=1.0)


def test_hooks_that_only_read_are_called_once_a_pass():
    seen = []
    gradient_of(lambda gradient: seen.append(float(gradient.norm())), passes=20)
    gradient_of(lambda gradient: seen.append(float(gradient.norm())) or gradient, passes=20)
    assert len(seen) == 40


def test_hooks_are_asked_in_their_first_calls_only():
    seen = []
    gradient_of(lambda gradient: seen.append(1) or gradient * 2, passes=100)
    assert 100 < len(seen) < 120


@pytest.mark.parametrize("name", ["clamp", "clamp in place", "norm", "threshold"])
def test_a_hook_of_the_global_batch_gets_what_one_process_has(name):
    """Of a gradient four times as large it makes four times as much as of the small one."""
    hook = popdist_torch.global_batch_hook(WRONG[name])
    gradient = torch.randn(5, 4, generator=torch.Generator().manual_seed(2)) * 0.02
    leaf = torch.zeros(5, 4, requires_grad=True)
    hidden = leaf * 1
    hidden.register_hook(hook)
    with ACTIVATION_HOOKS.in_pass(4.0):
        hidden.backward(4 * gradient)
    alone = gradient.clone()
    expected = WRONG[name](alone)
    expected = alone if expected is None else expected
    torch.testing.assert_close(leaf.grad, 4 * expected)
    assert not torch.equal(expected, gradient)


def test_passes_that_train_nothing_here_are_not_refused():
    """As where a program looks for what its network has seen."""
    leaf = torch.ones(3, requires_grad=True)
    hidden = leaf * 2
    hidden.register_hook(torch.sign)
    before, ACTIVATION_HOOKS.factor = ACTIVATION_HOOKS.factor, 2.0
    try:
        hidden.square().sum().backward()
    finally:
        ACTIVATION_HOOKS.factor = before
    assert leaf.grad.tolist() == [2.0, 2.0, 2.0]
    with ACTIVATION_HOOKS.in_pass(2.0):
        (leaf * 3).sum().backward()


def module_hook(_module, given, _out):
    return (given[0] * 2,)


def test_copies_and_files_have_the_programs_own_hooks():
    layer = nn.Linear(2, 2)
    layer.register_full_backward_hook(module_hook)
    layer(torch.ones(1, 2, requires_grad=True))
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):  # noqa: S301 - made here
        x = torch.ones(1, 2, requires_grad=True)
        copied(x).sum().backward()
        expected = 2 * copied.weight.sum(0, keepdim=True)
        torch.testing.assert_close(x.grad, expected)
    assert b"_Asked" not in pickle.dumps(layer)


def test_compiled_code_runs_its_hooks():
    first = nn.Linear(4, 4)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def run(x):
        hidden = first(x)
        hidden.register_hook(lambda gradient: gradient * 0.5)
        return hidden.sum()

    with ACTIVATION_HOOKS.in_pass(2.0):
        run(torch.ones(3, 4)).backward()
    torch.testing.assert_close(first.bias.grad, torch.full((4,), 1.5))
