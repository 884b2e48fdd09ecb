"""Real jobs of a library that knows nothing of popdist: plain options, its own sampler."""

import logging

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler, Subset, TensorDataset

import popdist_torch as poptorch
from tests.distributed.jobs import run_job

ROWS = 48
EXACT = 1e-14


class Net(torch.nn.Module):
    """A small regression in double precision."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
        ).double()

    def forward(self, x, y):
        return poptorch.identity_loss(((self.layers(x) - y) ** 2).mean(), "none")


def data():
    random = torch.Generator().manual_seed(2)
    x, y = (torch.randn(ROWS, n, generator=random, dtype=torch.float64) for n in (4, 1))
    return x, y


def train(replicas_of_program):
    """Trains as optimum-graphcore's trainer does: it sets all options from its own settings."""
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("popdist.torch").addHandler(handler)
    options = poptorch.Options().replicationFactor(replicas_of_program).randomSeed(3)
    options.Training.gradientAccumulation(2)
    dataset = TensorDataset(*data(), torch.arange(ROWS))
    sampler = RandomSampler(Subset(dataset, range(ROWS)))
    loader = poptorch.DataLoader(options, dataset, batch_size=2, sampler=sampler)
    model = Net()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options, optimizer=optimizer)
    rows = []
    for x, y, numbers in loader:
        training(x, y)
        rows.append(numbers.numpy())
    training.copyWeightsToHost()
    return {
        "rows": np.stack(rows),
        "weights": torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy(),
        "warnings": sum("PD353" in message for message in messages),
    }


def alone(rows):
    """Plain torch in one process on the global batches, in the order of a job's calls."""
    x, y = data()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in rows:
        optimizer.zero_grad()
        ((model.layers(x[batch]) - y[batch]) ** 2).mean().backward()
        optimizer.step()
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy()


@pytest.mark.parametrize(
    ("replicas", "asked", "warnings"), [(1, 2, 0), (2, 4, 0), (1, 4, 1), (2, 2, 0)]
)
def test_plain_options_train_the_job(replicas, asked, warnings):
    first, second = run_job(train, instances=2, replicas=asked, replicas_of_program=replicas)
    assert not set(first["rows"].ravel()) & set(second["rows"].ravel())
    assert np.array_equal(first["weights"], second["weights"])
    expected = alone(np.concatenate([first["rows"], second["rows"]], axis=1))
    assert np.abs(first["weights"] - expected).max() <= EXACT
    assert (first["warnings"], second["warnings"]) == (warnings, 0)
