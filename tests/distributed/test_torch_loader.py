"""Real jobs: what the instances read together is the data set, once."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import popdist
import popdist.poptorch
import popdist_torch as poptorch
from tests.distributed.jobs import run_job
from tests.popdist_torch import reference

LENGTH, MICRO_BATCH = 53, 2


def read(ways):
    # Data processes start while MPI is up, as in a program that calls popdist.init() first.
    popdist.init()
    answer = {}
    for mode, workers in ways:
        loader = poptorch.DataLoader(
            popdist.poptorch.Options().randomSeed(4),
            TensorDataset(torch.arange(LENGTH)),
            batch_size=MICRO_BATCH,
            shuffle=True,
            num_workers=workers,
            mode=poptorch.DataLoaderMode[mode],
        )
        for epoch in range(2):
            batches = np.stack([batch[0].numpy() for batch in loader])
            answer[f"{mode}, epoch {epoch}"] = batches
        loader.terminate()
    return answer


@pytest.mark.parametrize(
    ("instances", "replicas", "ways"),
    [(2, 4, [("Sync", 1), ("Async", 0)]), (2, 3, [("Sync", 0), ("AsyncRebatched", 1)])],
)
def test_instances_share_the_data_by_replicas(instances, replicas, ways):
    answers = run_job(read, instances=instances, replicas=replicas, ways=ways)
    updates = LENGTH // (MICRO_BATCH * replicas)
    for mode, _ in ways:
        orders = []
        for epoch in range(2):
            batches = [answer[f"{mode}, epoch {epoch}"] for answer in answers]
            local = [replicas // instances + (i < replicas % instances) for i in range(instances)]
            assert [b.shape for b in batches] == [(updates, MICRO_BATCH * n) for n in local]
            order = np.concatenate([b.ravel() for b in batches])
            assert len(set(order)) == len(order) == updates * MICRO_BATCH * replicas
            orders.append(order)
        assert orders[0].tolist() != orders[1].tolist()


def train_interleaved(accumulation=2, own=None):
    options = (own or popdist.poptorch.Options)().randomSeed(4).deviceIterations(2)
    if own is not None:
        options.replicationFactor(4)
    options.Training.gradientAccumulation(accumulation)
    torch.manual_seed(1)
    model = Net().double()
    training = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    x = torch.randn(75, 3, generator=torch.Generator().manual_seed(2)).double()
    loader = poptorch.DataLoader(
        options,
        TensorDataset(x, x[:, :2].sin()),
        batch_size=MICRO_BATCH,
        shuffle=True,
        partition=poptorch.DataPartition.Interleaved,
    )
    for _ in range(2):
        for batch in loader:
            training(*batch)
    return {"weights": reference.flat(model), "batches": len(loader), **uneven(options)}


def uneven(options):
    """Data of which every instance has one batch more than the one before."""
    seen = {}
    batches = range(2 + options.Distributed.processId)
    seen["early"] = list(poptorch.in_step(batches, options, stop_early=True))
    seen["even"] = list(poptorch.in_step(range(2), options))
    seen["begun"] = []
    try:
        for batch in poptorch.in_step(batches, options):
            seen["begun"].append(batch)
    except AssertionError as error:
        seen["uneven"] = str(error)
    return seen


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x, y):
        return torch.nn.functional.mse_loss(self.layer(x), y)


def test_interleaved_data_trains_the_same_in_every_layout():
    expected = train_interleaved(own=poptorch.Options)
    assert expected["batches"] == 2
    for answer in run_job(train_interleaved, instances=2, replicas=4):
        assert answer["batches"] == 2
        assert abs(answer["weights"] - expected["weights"]).max() < 1e-14
        assert answer["early"] == answer["even"] == answer["begun"] == [0, 1]
        assert "instance 0 ended after 2 batches" in answer["uneven"]
    assert "uneven" not in expected
