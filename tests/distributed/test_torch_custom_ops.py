"""Custom operators over replicas, on two real ranks, against both replicas in one process."""

import numpy as np
import pytest
import torch

from tests.distributed.jobs import run_job

X = torch.arange(24, dtype=torch.float32).reshape(2, 4, 3) / 7  # a part for each replica
W = torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])


def collective(name, attributes):
    import torch
    from torch import nn

    import popdist_torch as poptorch

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x, scale):
            value = x[0] * self.weight
            examples = [value[None].expand(2, 4, 3) if name.endswith("Gather") else value]
            (found,) = poptorch.custom_op(
                [value], name, "ai.graphcore", 1, examples, attributes=attributes
            )
            return found, poptorch.identity_loss((found**2 * scale[0]).sum(), "none")

    options = poptorch.Options()
    rank = options.Distributed.processId
    model = Model()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.01)
    training = poptorch.trainingModel(model, options, optimizer=optimizer)
    found, _ = training(X[rank : rank + 1], W[rank : rank + 1])
    return {"found": found.numpy(), "weight": model.weight.detach().numpy()}


# Of each operator: its results on both replicas, and the gradients of its inputs.
EXPECTED = {
    "gather": ("ReplicatedAllGather", {}, lambda v: [torch.stack(v)] * 2,
               lambda g: [g[0][0], g[1][1]]),
    "reduce": ("ReplicatedAllReduce", {}, lambda v: [v[0] + v[1]] * 2,
               lambda g: [g[0] + g[1]] * 2),
    "forward": ("ReplicatedAllReduceTP", {"op": "sum", "backwards": False},
                lambda v: [v[0] + v[1]] * 2, lambda g: g),
    "backward": ("ReplicatedAllReduceTP", {"op": "sum", "backwards": True}, lambda v: v,
                 lambda g: [g[0] + g[1]] * 2),
    "all to all": ("ReplicatedAllToAll", {},
                   lambda v: [torch.cat([v[0][:2], v[1][:2]]), torch.cat([v[0][2:], v[1][2:]])],
                   lambda g: [torch.cat([g[0][:2], g[1][:2]]), torch.cat([g[0][2:], g[1][2:]])]),
}  # fmt: skip


@pytest.mark.parametrize("kind", EXPECTED)
def test_results_and_gradients_are_those_of_both_replicas_in_one_process(kind):
    name, attributes, forward, backward = EXPECTED[kind]
    values = [part.double() for part in X]
    found = forward(values)
    upstream = [2 * one * scale.double() for one, scale in zip(found, W, strict=True)]
    gradients = backward(upstream)
    mean = sum((g * v).sum(0) for g, v in zip(gradients, values, strict=True)) / 2
    ranks = run_job(collective, name=name, attributes=attributes)
    for rank, expected in zip(ranks, found, strict=True):
        np.testing.assert_allclose(rank["found"], expected.numpy(), rtol=1e-6)
        np.testing.assert_allclose(rank["weight"], (1 - 0.01 * mean).numpy(), rtol=1e-5)
    np.testing.assert_array_equal(ranks[0]["weight"], ranks[1]["weight"])
