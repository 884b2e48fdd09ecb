"""What losses are divided by is read from their graphs, and changes no gradient."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from popdist_torch.loss_means import _divisors

F = nn.functional
Y = torch.tensor([0, 1, 2, 1, 1])
MASK = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0], dtype=torch.float64)
WEIGHTS = torch.tensor([0.5, 1.0, 2.25], dtype=torch.float64)


def masked(scores):
    return (F.cross_entropy(scores, Y, reduction="none") * MASK).sum() / MASK.sum()


def offloaded(scores):
    with torch.autograd.graph.save_on_cpu():
        return F.cross_entropy(scores, Y, ignore_index=1)


LOSSES = {
    "rows": (lambda scores: F.cross_entropy(scores, Y), [5.0]),
    "padding": (lambda scores: F.cross_entropy(scores, Y, ignore_index=1), [2.0]),
    "weights": (lambda scores: F.cross_entropy(scores, Y, weight=WEIGHTS), [5.75]),
    "positions": (
        lambda s: F.cross_entropy(s.T[None].contiguous(), Y[None], ignore_index=1),
        [2.0],
    ),
    "sum": (lambda scores: F.cross_entropy(scores, Y, reduction="sum"), []),
    "squares": (lambda scores: F.mse_loss(scores, torch.ones_like(scores)), [15.0]),
    "mean": (lambda scores: scores.square().mean(), [15.0]),
    "mask": (masked, [3.0]),
    "two": (lambda s: F.cross_entropy(s, Y, ignore_index=1) + 0.1 * s.square().mean(), [2.0, 15.0]),
    "accumulated": (lambda scores: F.cross_entropy(scores, Y) / 4, [4.0]),
    "scaled by data": (lambda scores: scores.sum() / scores.detach().norm(), []),
    "checkpointed": (lambda s: checkpoint(LOSSES["padding"][0], s, use_reentrant=False), []),
    "offloaded": (offloaded, []),
}


@pytest.mark.parametrize("name", LOSSES)
def test_divisors_are_read_and_gradients_stay(name):
    loss, divisors = LOSSES[name]
    start = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = []
    for read in (False, True):
        scores = start.clone().requires_grad_()
        value = loss(scores * 2)
        if read:
            assert _divisors([value]) == divisors
        value.backward(retain_graph=True)
        (penalty,) = torch.autograd.grad(value, scores, create_graph=True)
        (value + penalty.square().sum()).backward()
        found.append(scores.grad)
    assert torch.equal(*found)
