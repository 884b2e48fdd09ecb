"""Custom operators over replicas in several layouts, against all replicas in one plain graph."""

import functools

import numpy as np
import pytest
import torch

from tests.distributed.jobs import run_job

REPLICAS = 4
X = torch.arange(REPLICAS * 8 * 3, dtype=torch.float32).reshape(REPLICAS, 8, 3) / 17
W = torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75], [-2.0, 1.0, 0.5], [0.75, 3.0, -1.0]])


def parts(values):
    """Part n of every value, for each replica n."""
    pieces = [value.chunk(REPLICAS) for value in values]
    return [torch.cat([of_one[n] for of_one in pieces]) for n in range(REPLICAS)]


def totals(values):
    return [sum(values)] * REPLICAS


# Of each operator: its results on all replicas, and the gradients of its inputs.
EXPECTED = {
    "gather": ("ReplicatedAllGather", {}, lambda v: [torch.stack(v)] * REPLICAS,
               lambda g: [one[n] for n, one in enumerate(g)]),
    "reduce": ("ReplicatedAllReduce", {}, totals, totals),
    "forward": ("ReplicatedAllReduceTP", {"op": "sum", "backwards": False}, totals, lambda g: g),
    "backward": ("ReplicatedAllReduceTP", {"op": "sum", "backwards": True}, lambda v: v, totals),
    "all to all": ("ReplicatedAllToAll", {}, parts, parts),
}  # fmt: skip


def collectives():
    """The results of this process's replicas, and the weights after an update, of each operator."""
    import popdist
    import popdist_torch as poptorch

    class Model(torch.nn.Module):
        def __init__(self, name, attributes):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))
            self.name = name
            self.attributes = attributes

        def forward(self, x, scale):
            value = x[0] * self.weight
            gathers = self.name.endswith("Gather")
            example = value.expand(REPLICAS, *value.shape) if gathers else value
            (found,) = poptorch.custom_op(
                [value], self.name, "ai.graphcore", 1, [example], attributes=self.attributes
            )
            return found, poptorch.identity_loss((found**2 * scale[0]).sum(), "none")

    instances, index = popdist.getNumInstances(), popdist.getInstanceIndex()
    local = REPLICAS // instances
    answer = {}
    for kind, (name, attributes, *_) in EXPECTED.items():
        options = poptorch.Options().outputMode(poptorch.OutputMode.All)
        options.replicationFactor(local)
        model = Model(name, attributes)
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.01)
        training = poptorch.trainingModel(model, options, optimizer=optimizer)
        mine = slice(index * local, (index + 1) * local)
        found, _ = training(X[mine], W[mine])
        answer[f"found {kind}"] = found.numpy()
        answer[f"weight {kind}"] = model.weight.detach().numpy()
    from popdist_torch import SyncBatchNorm

    options = poptorch.Options().replicationFactor(local)
    model = normalized(SyncBatchNorm(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    training = poptorch.trainingModel(model, options, optimizer=optimizer)
    for _ in range(2):
        training(X[mine].flatten(0, 1).double())
    return answer | {name: value.numpy() for name, value in model.state_dict().items()}


def normalized(norm):
    """A model whose loss depends on the statistics of all rows."""
    import popdist_torch as poptorch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = norm
            self.weight = torch.nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))

        def forward(self, x):
            return poptorch.identity_loss(torch.tanh(self.norm(x**2) * self.weight), "mean")

    return Model().double()


@functools.cache
def answers(instances):
    """In one process alone for one instance; else of a job."""
    return [collectives()] if instances == 1 else run_job(
        collectives, instances=instances, replicas=REPLICAS
    )  # fmt: skip


@pytest.mark.parametrize("instances", [1, 2, 4])
@pytest.mark.parametrize("kind", EXPECTED)
def test_results_and_gradients_are_those_of_all_replicas_in_one_graph(kind, instances):
    _, _, forward, backward = EXPECTED[kind]
    values = [part.double() for part in X]
    found = forward(values)
    upstream = [2 * one * scale.double() for one, scale in zip(found, W, strict=True)]
    gradients = backward(upstream)
    mean = sum((g * v).sum(0) for g, v in zip(gradients, values, strict=True)) / REPLICAS
    ranks = answers(instances)
    seen = np.concatenate([rank[f"found {kind}"] for rank in ranks])
    np.testing.assert_allclose(seen, torch.cat(found).numpy(), rtol=1e-6)
    for rank in ranks:
        np.testing.assert_allclose(
            rank[f"weight {kind}"], (1 - 0.01 * mean).numpy(), rtol=1e-4, atol=1e-4
        )
        np.testing.assert_array_equal(rank[f"weight {kind}"], ranks[0][f"weight {kind}"])


@pytest.mark.parametrize("instances", [1, 2, 4])
def test_statistics_of_batches_are_those_of_all_replicas(instances):
    alone = normalized(torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        alone(X.flatten(0, 1).double()).backward()
        optimizer.step()
    for rank in answers(instances):
        for name, value in alone.state_dict().items():
            np.testing.assert_allclose(rank[name], value.numpy(), rtol=1e-9, err_msg=name)
