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
import popdist_torch.horovod as hvd
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


ALONE = {
    "save": ("Checkpoint.save()", lambda job: job.saved.save()),
    "load": ("Checkpoint.load()", lambda job: job.saved.load()),
    "average_metrics": ("average_metrics", lambda _: hvd.average_metrics({"loss": 1.0})),
    "broadcast": ("broadcast_parameters", lambda job: hvd.broadcast_parameters(job.model)),
    "state": (
        "broadcast_optimizer_state",
        lambda job: hvd.broadcast_optimizer_state(job.optimizer),
    ),
    "in_step": (
        "the next batch of in_step",
        lambda job: next(iter(poptorch.in_step([0], job.options))),
    ),
    "synchronize": ("popdist.synchronize", lambda _: popdist.synchronize()),
}
"""What one instance calls alone while the other trains on: its name, and the call."""


class Alone:
    """A training that one instance leaves: a model of its own class, and so names of its own."""

    def __init__(self, way, path):
        torch.manual_seed(1)
        self.options = popdist.poptorch.Options()
        self.model = nn.Linear(2, 2)
        plain = torch.optim.SGD(self.model.parameters(), lr=0.1)
        if way == "loop":
            self.optimizer = hvd.DistributedOptimizer(plain)
        else:
            kind = type(f"Marked{len(path)}", (Marked,), {})
            self.optimizer = plain
            self.training = poptorch.trainingModel(kind(self.model), self.options, plain)
        self.way = way
        self.saved = poptorch.Checkpoint(path, model=self.model)

    def step(self):
        x = torch.full((1, 2), 1.0 + hvd.rank())
        if self.way == "loop":
            self.optimizer.zero_grad()
            self.model(x).sum().backward()
            self.optimizer.step()
        else:
            self.training(x)


def error_alone(way, name, path, *, steps):
    """What each instance says where the last one makes a call alone; the others train on."""
    job = Alone(way, path)
    for _ in range(steps):
        job.step()
        job.saved.save()  # by all, which is right
    try:
        if hvd.rank() == hvd.size() - 1:
            ALONE[name][1](job)
        job.step()
    except poptorch.Error as error:
        return [type(error).__name__, str(error)]
    return ["", "none"]


def on_one_instance(folder):
    """The idiom of other tools: one process alone saves or loads, the others train on."""
    hvd.init()
    said = {}
    for way in ("loop", "model"):
        for index, name in enumerate(ALONE, 1):
            path = f"{folder}/{'x' * index}"
            said[f"{way}, {name}"] = error_alone(way, name, path, steps=1)
    said["model, at first"] = error_alone("model", "save", f"{folder}/{'x' * 20}", steps=0)
    said["loop, at first"] = error_alone("loop", "save", f"{folder}/y", steps=0)
    try:
        calls = ["save", "average_metrics"]
        ALONE[calls[hvd.rank()]][1](Alone("loop", f"{folder}/z"))
    except poptorch.Error as error:
        said["two calls"] = [type(error).__name__, str(error)]
    if hvd.rank() == 0:
        return said  # and ends, while the others wait
    try:
        hvd.average_metrics({"loss": 1.0})
    except poptorch.Error as error:
        said["ended"] = [type(error).__name__, str(error)]
    return said


class Marked(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return poptorch.identity_loss(self.model(x), reduction="sum")


def test_a_call_by_one_instance_alone_is_an_error_at_once(tmp_path):
    first, second = run_job(on_one_instance, folder=str(tmp_path))
    assert "another one has ended" in second.pop("ended")[1]
    for name, (kind, error) in first.items():
        way, call = name.split(", ") if ", " in name else ("", "")
        other = second[name][1]
        assert error == other, name
        assert "[PD323]" in error
        assert "if rank == 0" in error
        trains = {"loop": "a backward pass", "model": "a step of trainingModel"}.get(way)
        if name == "two calls":
            assert "Checkpoint.save() on instance 0; average_metrics on instance 1" in error
            assert (kind, second[name][0]) == ("CheckpointError", "AgreementError")
            continue
        called = ALONE.get(call, ALONE["save"])[0]
        assert trains in error.split(" on instance 0; ")[0], name
        assert f" on instance 0; {called} on instance 1" in error
        assert kind == "AgreementError"
        assert second[name][0] == ("CheckpointError" if "()" in called else kind)


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
