"""Real jobs: what the instances read together is the data set, once."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import popdist
import popdist.poptorch
import popdist_torch as poptorch
from tests.distributed.jobs import LAUNCHER, run_job
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


ROWS = torch.randn(16, 3, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
CLASSES = torch.arange(16) % 4


class Scores(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 4)
        torch.nn.init.constant_(self.layer.weight, 0.1)
        torch.nn.init.zeros_(self.layer.bias)

    def forward(self, x, y):
        scores = self.layer(x)
        return scores, torch.nn.functional.cross_entropy(scores, y, ignore_index=-100)


def pad(samples):
    """A micro-batch with one more row, which does not count."""
    rows, classes = zip(*samples, strict=True)
    return torch.stack([*rows, torch.ones(3).double()]), torch.stack([*classes, torch.tensor(-100)])


def train_padded():
    options = popdist.poptorch.Options()
    options.Training.gradientAccumulation(2)
    first = popdist.getInstanceIndex() * 8
    mine = torch.utils.data.BatchSampler(range(first, first + 8), MICRO_BATCH, drop_last=True)
    loader = poptorch.DataLoader(
        options,
        TensorDataset(ROWS, CLASSES),
        batch_sampler=mine,
        collate_fn=pad,
        auto_distributed_partitioning=False,
    )
    model = Scores().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    training = poptorch.trainingModel(model, options, optimizer=optimizer)
    shapes = []
    for x, y in loader:
        training(x, y)
        shapes.append(list(x.shape))
    return {"weight": model.layer.weight.detach().numpy(), "shapes": shapes}


def test_micro_batches_that_a_program_pads_train_as_one_process_on_the_global_batch():
    model = Scores().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for update in range(2):
        batch = [first + update * 4 + row for first in (0, 8) for row in range(4)]
        optimizer.zero_grad()
        model(ROWS[batch], CLASSES[batch])[1].backward()
        optimizer.step()
    for answer in run_job(train_padded):
        assert answer["shapes"] == [[2 * (MICRO_BATCH + 1), 3]] * 2
        np.testing.assert_allclose(answer["weight"], model.layer.weight.detach(), rtol=1e-12)


WAITING = """
import sys, time
import torch
import popdist, popdist.poptorch, popdist_torch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        open(sys.argv[1] + str(popdist.getInstanceIndex()), "w").close()
        time.sleep(300)

if __name__ == "__main__":
    popdist.init()
    mode = popdist_torch.DataLoaderMode.Async
    popdist_torch.DataLoader(popdist.poptorch.Options(), Slow(), batch_size=1, mode=mode)
"""


def test_a_job_that_waits_for_its_first_batch_says_so(tmp_path):
    program, results, began = tmp_path / "waiting.py", tmp_path / "results", tmp_path / "began"
    program.write_text(WAITING)
    words = ["--num-instances=2", "--num-replicas=2", f"--json={results}"]
    job = subprocess.Popen([*LAUNCHER, *words, sys.executable, program, began])
    limit = time.monotonic() + 100
    while not all((tmp_path / f"began{index}").exists() for index in range(2)):
        assert job.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.1)
    job.terminate()
    job.wait(60)
    phases = [one["phase"] for one in json.loads(results.read_text())["instances"]]
    assert phases == ["loading", "loading"]
