"""A program's own autograd functions: those that depend on the size of gradients are refused."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import popdist_torch
from popdist_torch.errors import GradientError
from popdist_torch.replica_gradients import own_functions
from popdist_torch.replica_gradients.activation_hooks import ACTIVATION_HOOKS
from tests.distributed.torch_loops import warnings_of_popdist

BOUND = 0.01
OWN = torch.Generator().manual_seed(1)


@pytest.fixture(autouse=True)
def started():
    ACTIVATION_HOOKS.start()
    own_functions.start()


def function(backward, forward=lambda x, *_: x * 1):
    """A new class of functions with one backward pass."""

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(context, *tensors):
            context.save_for_backward(*tensors)
            return forward(*tensors)

    Own.backward = staticmethod(backward)
    return Own


def bound_in_place(_context, gradient):
    return gradient.clamp_(-BOUND, BOUND)


def linear_backward(context, gradient):
    x, weight = context.saved_tensors
    return gradient @ weight, gradient.T @ x


def linear_that_bounds_its_weights(context, gradient):
    x, weight = context.saved_tensors
    return gradient @ weight, (gradient.T @ x).clamp(-BOUND, BOUND)


def linear_that_keeps_positive_weights(context, gradient):
    """In proportion, but the sum of two such gradients is not that of their sum."""
    x, weight = context.saved_tensors
    return gradient @ weight, (gradient.T @ x).relu()


def guided_linear(context, gradient):
    x, weight = context.saved_tensors
    return (gradient @ weight).relu(), gradient.T @ x


RIGHT = {
    "straight through": lambda _, gradient: gradient,
    "reversed": lambda _, gradient: -0.3 * gradient,
    "saved mask": lambda context, gradient: gradient * (context.saved_tensors[0] > 0),
    "positive part": lambda _, gradient: gradient.relu(),
    "random mask": lambda _, gradient: nn.functional.dropout(gradient, 0.5),
    "in place": lambda _, gradient: gradient.mul_(0.5),
    "largest scaled": lambda _, gradient: gradient * gradient.sign().mean(),
}
WRONG = {
    "bound": lambda _, gradient: gradient.clamp(-BOUND, BOUND),
    "bound in place": bound_in_place,
    "sign": lambda _, gradient: gradient.sign(),
    "normalized": lambda _, gradient: gradient / gradient.norm(),
    "threshold": lambda _, gradient: torch.where(gradient.abs() > BOUND, gradient, 0),
}
LINEAR = {"matrix product": linear_backward, "guided": guided_linear}
LINEAR_WRONG = {
    "bounded weights": linear_that_bounds_its_weights,
    "positive weights": linear_that_keeps_positive_weights,
}


def gradient_of(own, *, factor=2.0, passes=2, linear=False, checkpointed=False):
    """The first layer's gradient after backward passes through a function."""
    torch.manual_seed(1)
    first, last = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)

    def run(hidden):
        return own.apply(hidden, last.weight) if linear else last(own.apply(hidden))

    for _ in range(passes):
        hidden = first(torch.randn(5, 4))
        made = checkpoint(run, hidden, use_reentrant=False) if checkpointed else run(hidden)
        with ACTIVATION_HOOKS.in_pass(factor):
            (made.sin() * torch.randn(5, 4)).mean().backward()
    return torch.cat([first.weight.grad, last.weight.grad])


def same(own, **kwargs):
    found = gradient_of(own, **kwargs)
    torch.testing.assert_close(found, gradient_of(own, factor=1.0, **kwargs), rtol=0, atol=0)


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("name", RIGHT)
def test_functions_in_proportion_run_as_without_a_check(name, checkpointed):
    same(function(RIGHT[name]), checkpointed=checkpointed)


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("name", WRONG)
def test_functions_that_depend_on_the_size_are_refused_with_their_place(name, checkpointed):
    own = function(WRONG[name])
    for _ in range(2):
        with pytest.raises(GradientError, match=r"(?s)PD334.*Own.backward.*test_own_f") as caught:
            gradient_of(own, checkpointed=checkpointed)
        assert "global_batch_hook" in str(caught.value)
    gradient_of(own, factor=1.0)


@pytest.mark.parametrize("name", LINEAR)
def test_functions_with_weights_may_be_linear_in_them(name):
    same(function(LINEAR[name], nn.functional.linear), linear=True)


@pytest.mark.parametrize("name", LINEAR_WRONG)
def test_gradients_of_weights_have_to_add_up(name):
    with pytest.raises(GradientError, match="PD334"):
        gradient_of(function(LINEAR_WRONG[name], nn.functional.linear), linear=True)


def test_functions_without_a_proof_are_asked_in_their_first_calls_only():
    seen = []
    own = function(lambda _, gradient: seen.append(1) or gradient.relu() * 2)
    gradient_of(own, passes=100)
    assert 100 < len(seen) < 120


PROVEN = {
    "itself": lambda _, gradient: gradient,
    "reversed": lambda _, gradient: -0.3 * gradient + gradient.mean(0) - gradient / 3,
    "masked": lambda c, gradient: torch.where(c.saved_tensors[0] > 0, gradient, 0.0),
    "masked in place": lambda c, gradient: gradient.clone().mul_(c.saved_tensors[0] > 0),
    "of tanh": lambda c, gradient: (
        torch.cat([gradient, gradient * 0])[:5] * (1 - c.saved_tensors[0])
    ),
    "of a graph": lambda c, gradient: through_a_graph(c.saved_tensors[0], gradient),
    "in parts": lambda _, gradient: torch.stack([row * 2 for row in gradient]),
}


def through_a_graph(x, gradient):
    """As functions do that compute their forward pass again."""
    with torch.enable_grad():
        again = x.detach().requires_grad_()
        made = nn.functional.gelu(again).softmax(1)
        return torch.autograd.grad(made, again, gradient)[0]


@pytest.mark.parametrize("name", PROVEN)
def test_functions_that_are_proven_to_be_linear_are_called_once(name):
    seen = []
    own = function(lambda c, gradient: seen.append(1) or PROVEN[name](c, gradient))
    found = gradient_of(own, passes=10)
    assert len(seen) == 10
    torch.testing.assert_close(found, gradient_of(own, passes=10, factor=1.0), rtol=0, atol=0)


def overwritten(_context, gradient):
    made = gradient * 2
    made[0].sign_()
    return made


def chosen_by_a_number(_context, gradient):
    return gradient * (2.0 if float(gradient.abs().max()) > BOUND else 1.0)


@pytest.mark.parametrize(
    "backward", [overwritten, chosen_by_a_number, lambda _, g: g + BOUND, lambda _, g: g * g.abs()]
)
def test_no_proof_is_found_where_there_is_none(backward):
    with pytest.raises(GradientError, match="PD334"):
        gradient_of(function(backward))


def test_a_function_that_writes_elsewhere_is_run_once_and_named():
    total = torch.zeros(5, 4)

    def backward(_context, gradient):
        total.add_(gradient)
        return gradient.clamp(-BOUND, BOUND)

    with warnings_of_popdist() as said:
        gradient_of(function(backward), passes=1)
    once = total.clone()
    assert len(said) == 1
    assert "[PD337]" in said[0]
    total.zero_()
    gradient_of(function(backward), passes=1, factor=1.0)
    torch.testing.assert_close(once, total, rtol=0, atol=0)


def test_a_loss_may_ignore_the_gradient_that_it_gets():
    """As usual where the result is a number: it is 1 in every job."""
    own = function(lambda context, _: context.saved_tensors[0] * 0.5, lambda x: x.square().sum())
    leaf = torch.randn(3, 4, requires_grad=True)
    with ACTIVATION_HOOKS.in_pass(2.0):
        own.apply(leaf * 1).backward()
    torch.testing.assert_close(leaf.grad, leaf.detach() * 0.5)


def test_a_backward_of_the_global_batch_gets_what_one_process_has():
    class Bounded(torch.autograd.Function):
        @staticmethod
        def forward(_context, x):
            return x * 1

        @staticmethod
        @popdist_torch.global_batch_hook
        def backward(_context, gradient):
            return gradient.clamp(-BOUND, BOUND)

    gradient = torch.randn(5, 4, generator=torch.Generator().manual_seed(2)) * 0.02
    leaf = torch.zeros(5, 4, requires_grad=True)
    with ACTIVATION_HOOKS.in_pass(4.0):
        Bounded.apply(leaf).backward(4 * gradient)
    torch.testing.assert_close(leaf.grad, 4 * gradient.clamp(-BOUND, BOUND))


def test_a_function_that_gives_other_results_each_time_is_named_once():
    def noisy(_context, gradient):
        return gradient + torch.randn(gradient.shape, generator=OWN)

    with warnings_of_popdist() as said:
        gradient_of(function(noisy), passes=4)
    assert len(said) == 1
    assert "[PD337]" in said[0]
    assert "Own.backward" in said[0]


def test_a_function_with_a_backward_pass_of_its_own_is_run_once():
    """As reversible layers: it adds to gradients of parameters by itself."""
    layer = nn.Linear(4, 4)

    def backward(context, gradient):
        with torch.enable_grad():
            x = context.saved_tensors[0].detach().requires_grad_()
            layer(x).backward(gradient)
        return x.grad

    own, found = function(backward, layer), []
    for factor in (1.0, 2.0):
        layer.zero_grad()
        x = torch.ones(3, 4, requires_grad=True)
        with ACTIVATION_HOOKS.in_pass(factor):
            own.apply(x).sin().sum().backward()
        found.append(layer.weight.grad.clone())
    torch.testing.assert_close(*found, rtol=0, atol=0)


def bounded_outputs(given):
    return tuple(one.clamp(-BOUND, BOUND) for one in given)


@pytest.mark.parametrize("python", [True, False])
@pytest.mark.parametrize("before", [True, False])
def test_hooks_of_graph_nodes_are_asked(python, before):
    def run(hook, factor=2.0):
        torch.manual_seed(3)
        leaf = torch.randn(3, 4, requires_grad=True)
        hidden = function(RIGHT["straight through"]).apply(leaf) if python else leaf * 1
        if before:
            hidden.grad_fn.register_prehook(hook)
        else:
            hidden.grad_fn.register_hook(
                lambda given, _out: tuple(g if g is None else hook((g,))[0] for g in given)
            )
        with ACTIVATION_HOOKS.in_pass(factor):
            hidden.sin().sum().backward()
        return leaf.grad

    halved = run(lambda given: (given[0] * 0.5,))
    torch.testing.assert_close(halved, run(lambda given: (given[0] * 0.5,), factor=1.0))
    with pytest.raises(GradientError, match="PD334"):
        run(bounded_outputs)
    run(bounded_outputs, factor=1.0)
