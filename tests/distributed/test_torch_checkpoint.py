"""Jobs that are killed without warning go on from their checkpoint with the very same numbers."""

import os
import random
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import popdist
import popdist.poptorch
import popdist_torch as poptorch
from tests.distributed.jobs import JobFailedError, run_job
from tests.popdist_torch import reference

EPOCHS = 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, 4)
        )

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.layers(x), y)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def train(path, instance=None, moment=None, call=None):
    """Trains on random data, and saves after every other call; one instance may be killed.

    With `moment` "saving" it dies while the file is written, with a number so many seconds after
    call `call`, whatever it is doing then.
    """
    popdist.init()
    random.seed(popdist.getInstanceIndex())
    np.random.seed(popdist.getInstanceIndex())  # noqa: NPY002 - what programs use
    options = popdist.poptorch.Options().randomSeed(3).deviceIterations(2)
    options.Training.gradientAccumulation(2)
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(100, 5, generator=generator), torch.randint(0, 4, (100,))
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    training = poptorch.trainingModel(model, options, optimizer)
    loader = poptorch.DataLoader(options, TensorDataset(x, y), batch_size=2, shuffle=True)
    saved = poptorch.Checkpoint(path, model=training, loader=loader, scheduler=scheduler)
    values = saved.load() or {"epoch": 0, "calls": 0}
    if values["calls"]:
        training.setOptimizer(optimizer)
    started, calls, losses = values["calls"], values["calls"], []

    def save(epoch):
        if calls % 2 == 0:
            if popdist.getInstanceIndex() == instance and calls == call:
                os.fsync = lambda _descriptor: die()
            saved.save(epoch=epoch, calls=calls)

    for epoch in range(values["epoch"], EPOCHS):
        for images, labels in loader:
            # The host draws too, from all of its streams.
            factor = random.random() * np.random.rand()  # noqa: S311, NPY002 - as above
            noisy = images + factor * torch.randn_like(images)
            losses.append(training(noisy, labels).mean().item())
            calls += 1
            mine = popdist.getInstanceIndex() == instance
            if mine and calls == call and moment != "saving":
                threading.Timer(moment, die).start()
            # Behind the last batch comes the next epoch, so what ends this one comes before.
            if calls % len(loader):
                save(epoch)
        scheduler.step()
        training.setOptimizer(optimizer)
        save(epoch + 1)
    return {
        "weights": reference.flat(model),
        "statistics": np.stack(
            [
                np.concatenate(
                    [b.double().reshape(-1).numpy() for s in row["buffers"] for b in s.values()]
                )
                for row in training.replica_state()
            ]
        ),
        "losses": losses,
        "started": started,
    }


def test_a_job_that_is_killed_twice_goes_on_bit_for_bit(tmp_path):
    uninterrupted = run_job(train, replicas=4, path=str(tmp_path / "whole.pt"))
    path = str(tmp_path / "folder" / "run.pt")
    # The file of call 4 is whole; that of call 6 never gets its name.
    with pytest.raises(JobFailedError):
        run_job(train, replicas=4, path=path, instance=0, moment="saving", call=6)
    with pytest.raises(JobFailedError):
        run_job(train, replicas=4, path=path, instance=1, moment=0.001, call=7)
    resumed = run_job(train, replicas=4, path=path)
    for whole, rest in zip(uninterrupted, resumed, strict=True):
        assert rest["started"] in (4, 6, 8)
        assert rest["losses"] == whole["losses"][rest["started"] :]
        np.testing.assert_array_equal(rest["weights"], whole["weights"])
        np.testing.assert_array_equal(rest["statistics"], whole["statistics"])


CASES = {
    "shuffled": {"shuffle": True, "mode": "Async"},
    "interleaved": {"shuffle": True, "partition": "Interleaved"},
}


def relaid(folder, case, calls, sharded, partition="Contiguous", mode="Sync", **reading):
    """Trains to a number of calls, from the last save on, in whatever layout the job has."""
    popdist.init()
    options = popdist.poptorch.Options().randomSeed(3).deviceIterations(2)
    options.Training.gradientAccumulation(2)
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(100, 5, generator=generator), torch.arange(100) % 4
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    training = poptorch.trainingModel(model, options, optimizer, placement_invariant=True)
    loader = poptorch.DataLoader(
        options,
        TensorDataset(x, y),
        batch_size=2,
        partition=poptorch.DataPartition[partition],
        mode=poptorch.DataLoaderMode[mode],
        **reading,
    )
    parts = {"model": training, "loader": loader, "scheduler": scheduler}
    saved = poptorch.Checkpoint(Path(folder, case), sharded=sharded, **parts)
    done = (saved.load() or {"calls": 0})["calls"]
    while done < calls:
        for images, labels in loader:
            training(images, labels)
            scheduler.step()
            done += 1
            if done == calls:
                break
    saved.save(calls=done)
    loader.terminate()
    return {
        "weights": reference.flat(model),
        "statistics": np.stack(
            [
                np.concatenate([b.double().reshape(-1).numpy() for b in row["buffers"][0].values()])
                for row in training.replica_state()
            ]
        ),
    }


def relaid_cases(runs):
    found = {}
    for run, (folder, calls, sharded) in runs.items():
        for case, reading in CASES.items():
            answer = relaid(folder, case, calls, sharded, **reading)
            found |= {f"{run}, {case}: {name}": value for name, value in answer.items()}
    return found


def test_a_run_resumes_with_another_number_of_instances_bit_for_bit(tmp_path):
    """2 instances, then 3 with 1, 1 and 2 replicas from shards, then 1 from the merged file."""

    def run(instances, **runs):
        return run_job(relaid_cases, instances=instances, replicas=4, runs=runs)

    moving, merged = str(tmp_path / "moving"), tmp_path / "merged"
    whole = run(2, whole=(str(tmp_path / "whole"), 7, False), moving=(moving, 2, True))
    run(3, moving=(moving, 4, True))
    for case in CASES:
        assert len(list((tmp_path / "moving" / case).glob("*/instance-*.pt"))) == 3
        poptorch.Checkpoint(tmp_path / "moving" / case).merge(merged / case)
    rest = run(1, merged=(str(merged), 7, False))[0]
    for case in CASES:
        for answer in whole:
            np.testing.assert_array_equal(
                rest[f"merged, {case}: weights"], answer[f"whole, {case}: weights"]
            )
        statistics = [answer[f"whole, {case}: statistics"] for answer in whole]
        np.testing.assert_array_equal(
            rest[f"merged, {case}: statistics"], np.concatenate(statistics)
        )


def refuse(path):
    """Instance 0 cannot write; a damaged file; a file of other things: seen by everybody."""
    popdist.init()
    seen = {}

    def attempt(name, function):
        try:
            function()
        except poptorch.Error as error:
            seen[name] = str(error)

    model = nn.Linear(2, 2)
    attempt("no folder", lambda: poptorch.Checkpoint("/proc/none/run.pt", model=model).save())
    saved = poptorch.Checkpoint(path, model=model)
    saved.save(best=0.5)
    seen["values"] = saved.load()
    attempt("other things", lambda: poptorch.Checkpoint(path, net=model).load())
    popdist.synchronize()
    if popdist.getInstanceIndex() == 0:
        with Path(path).open("r+b") as stream:
            stream.truncate(200)
    attempt("damaged", saved.load)
    return seen


def on_one_instance(path, way):
    """The idiom of other tools: the first process alone saves or loads, the others train on."""
    import popdist_torch.horovod as hvd

    hvd.init()
    torch.manual_seed(1)
    model = nn.Linear(2, 2)
    if way == "executor":
        options = popdist.poptorch.Options()
        training = poptorch.trainingModel(Marked(model), options)
        step = lambda: training(torch.ones(1, 2))  # noqa: E731
    else:
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

        def step():
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()

    saved = poptorch.Checkpoint(path, model=model)
    for _ in range(2):
        step()
        saved.save()  # by all, which is right
    try:
        if hvd.rank() == 0:
            saved.load() if way == "load" else saved.save()
        step()
    except poptorch.Error as error:
        return {"error": str(error)}
    return {"error": "none"}


class Marked(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return poptorch.identity_loss(self.model(x), reduction="sum")


@pytest.mark.parametrize("way", ["executor", "loop", "load"])
def test_saving_on_one_instance_is_an_error_at_once(tmp_path, way):
    for answer in run_job(on_one_instance, path=str(tmp_path / "run.pt"), way=way):
        assert "PD323" in answer["error"]
        assert "if rank == 0" in answer["error"]


def test_trouble_with_the_file_is_an_error_on_all_instances(tmp_path):
    first, second = run_job(refuse, path=str(tmp_path / "run.pt"))
    assert first["values"] == second["values"] == {"best": 0.5}
    for answer in (first, second):
        assert "cannot be written" in answer["no folder"]
        assert "holds other things" in answer["other things"]
        assert "cannot be read" in answer["damaged"]


def in_folders_of_their_own(path):
    """As on two hosts without a common file system; instance 0 has an older save."""
    popdist.init()
    folder = Path(path) / str(popdist.getInstanceIndex())
    torch.manual_seed(1)
    model = nn.Linear(2, 2)
    poptorch.Checkpoint(Path(path) / "0", sharded=True, model=model).save(number=1)
    saved = poptorch.Checkpoint(folder, sharded=True, model=model)
    answer = {}
    for way in (lambda: saved.save(number=2), saved.load):
        with pytest.raises(poptorch.Error) as caught:
            way()
        answer[caught.value.code] = str(caught.value)
    answer["kept"] = poptorch.Checkpoint(Path(path) / "0", model=model).load()
    return answer


def test_a_sharded_checkpoint_in_folders_of_single_hosts_is_an_error_on_all(tmp_path):
    for answer in run_job(in_folders_of_their_own, path=str(tmp_path)):
        assert "does not find what 1 instances wrote" in answer["PD325"]
        assert "the first of them instance 1" in answer["PD325"]
        assert "cannot be read" in answer["PD307"]
        assert answer["kept"] == {"number": 1}
