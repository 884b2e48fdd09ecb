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


def read(workers, mode):
    # Data processes start while MPI is up, as in a program that calls popdist.init() first.
    popdist.init()
    options = popdist.poptorch.Options().randomSeed(4)
    data = TensorDataset(torch.arange(LENGTH))
    loader = poptorch.DataLoader(
        options,
        data,
        batch_size=MICRO_BATCH,
        shuffle=True,
        num_workers=workers,
        mode=poptorch.DataLoaderMode[mode],
    )
    answer = {
        f"epoch {epoch}": np.stack([batch[0].numpy() for batch in loader]) for epoch in range(2)
    }
    loader.terminate()
    return answer


@pytest.mark.parametrize(
    ("instances", "replicas", "workers", "mode"),
    [
        (2, 4, 1, "Sync"),
        (2, 3, 0, "Sync"),
        (2, 4, 0, "Async"),
        (2, 3, 1, "AsyncRebatched"),
    ],
)
def test_instances_share_the_data_by_replicas(instances, replicas, workers, mode):
    answers = run_job(read, instances=instances, replicas=replicas, workers=workers, mode=mode)
    updates = LENGTH // (MICRO_BATCH * replicas)
    orders = []
    for epoch in ("epoch 0", "epoch 1"):
        batches = [answer[epoch] for answer in answers]
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
    return {"weights": reference.flat(model), "batches": len(loader)}


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
