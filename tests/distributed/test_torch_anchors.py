"""Anchored gradients on real instances: those of the local replicas, whatever the layout."""

import numpy as np
import pytest
import torch
from torch import nn

import popdist
import popdist.poptorch
import popdist_torch as poptorch
from popdist_torch.ops.over_replicas import Replica, total_of
from tests.distributed.jobs import run_job

REPLICAS, STEPS, ROWS = 4, 2, 3


class Net(nn.Module):
    def __init__(self, meets=False):
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.meets = nn.Linear(5, 2).double(), meets

    def forward(self, x):
        scores = self.layer(x)
        if self.meets:  # each replica's backward pass waits for the others in the middle
            scores = scores * total_of(Replica("test"), scores.mean())
        return poptorch.identity_loss(scores.square().mean(), reduction="none")


def rows():
    """Inputs [step, replica, row, 5]."""
    generator = torch.Generator().manual_seed(2)
    return torch.randn(STEPS, REPLICAS, ROWS, 5, generator=generator, dtype=torch.float64)


def anchored():
    here, answer = popdist.topology(), {}
    mine = slice(here.replica_index_offset, here.replica_index_offset + here.num_local_replicas)
    for meets in (False, True):
        options = popdist.poptorch.Options()
        options.Training.gradientAccumulation(STEPS)
        for mode in ("All", "Final", "Sum"):
            options.anchorTensor(mode, "Gradient___layer.weight", poptorch.OutputMode[mode])
        net = Net(meets)
        training = poptorch.trainingModel(net, options, torch.optim.SGD(net.parameters(), lr=0.1))
        training(rows()[:, mine].flatten(0, 2))
        for mode in ("All", "Final", "Sum"):
            answer[f"{mode} {meets}"] = training.getAnchoredTensor(mode).numpy()
    return answer


def expected(meets):
    """Gradients [step, replica, 2, 5] in plain torch."""
    weight, found = Net().layer.weight, []
    for step in rows():
        if meets:  # the loss of one replica changes with the weights of all
            copies = [Net().layer for _ in range(REPLICAS)]
            scores = [copy(x) for copy, x in zip(copies, step, strict=True)]
            total = sum(score.mean() for score in scores)
            sum((score * total).square().mean() for score in scores).backward()
            found += [copy.weight.grad for copy in copies]
        else:
            for x in step:
                net = Net()
                found += torch.autograd.grad(net(x), [net.layer.weight])
    return torch.stack(found).view(STEPS, REPLICAS, *weight.shape).numpy()


@pytest.mark.parametrize("instances", [1, 2, 4])
def test_gradients_of_the_local_replicas(instances):
    answers = run_job(anchored, instances=instances, replicas=REPLICAS)
    for meets in (False, True):
        wanted = expected(meets)
        each = wanted.reshape(STEPS, instances, REPLICAS // instances, *wanted.shape[2:])
        for index, answer in enumerate(answers):
            of_this = {
                "All": each[:, index],
                "Final": each[-1:, index],
                "Sum": each[:, index].sum(0, keepdims=True),
            }
            for mode, value in of_this.items():
                flat = value.reshape(-1, value.shape[-1])
                np.testing.assert_allclose(answer[f"{mode} {meets}"], flat, rtol=1e-12, atol=1e-15)
