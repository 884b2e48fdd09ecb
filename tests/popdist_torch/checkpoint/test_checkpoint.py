"""Checkpoints in one process; real jobs are killed in tests/distributed."""

import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import popdist_torch as poptorch
from popdist_torch.checkpoint import file
from popdist_torch.checkpoint.parts import load_optimizer, require_movable
from popdist_torch.errors import CheckpointError

X, Y = torch.randn(8, 3, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 4)
        )

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.layers(x), y)


def training_of(seed):
    options = poptorch.Options().randomSeed(seed).replicationFactor(2)
    model = Net()
    return poptorch.trainingModel(model, options, torch.optim.Adam(model.parameters(), lr=0.1))


def run(training, calls=3):
    return [training(X, Y).tolist() for _ in range(calls)]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_training_model_goes_on_where_it_was_saved(tmp_path, compiled):
    first = training_of(1)
    run(first)
    poptorch.Checkpoint(tmp_path / "run.pt", model=first).save(epoch=4)
    expected = run(first)
    second = training_of(2)
    if compiled:
        run(second, 2)
    assert poptorch.Checkpoint(tmp_path / "run.pt", model=second).load() == {"epoch": 4}
    assert run(second) == expected


def test_a_model_that_has_not_run_is_saved_too(tmp_path):
    first = training_of(1)
    poptorch.Checkpoint(tmp_path / "run.pt", model=first).save()
    expected = run(first)
    # The streams of a model that has not run are those of its seed.
    second = training_of(1)
    run(second)
    second.destroy()
    poptorch.Checkpoint(tmp_path / "run.pt", model=second).load()
    assert run(second) == expected


def test_plain_loops_and_the_hosts_streams_go_on_too(tmp_path):
    def draw():
        return torch.rand(1).item(), random.random(), np.random.rand()  # noqa: S311, NPY002

    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    saved = poptorch.Checkpoint(
        tmp_path / "run.pt", model=model, optimizer=optimizer, scheduler=scheduler
    )

    def step():
        optimizer.zero_grad()
        model(X).square().sum().backward()
        optimizer.step()
        scheduler.step()
        return model[0].weight.tolist(), model[1].running_mean.tolist(), draw()

    step()
    saved.save()
    expected = [step(), step()]
    saved.load()
    assert [step(), step()] == expected


def test_without_a_file_nothing_is_loaded(tmp_path):
    assert poptorch.Checkpoint(tmp_path / "run.pt", model=nn.Linear(2, 2)).load() is None


def test_accumulators_keep_their_type():
    parameter = nn.Parameter(torch.zeros(2, dtype=torch.float16))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    wide = torch.tensor([1 + 2**-20, 2.0])
    state = optimizer.state_dict() | {"state": {0: {"momentum_buffer": wide}}}
    load_optimizer(optimizer, state)
    assert optimizer.state[parameter]["momentum_buffer"].tolist() == wide.tolist()


def test_another_number_of_replicas_is_refused(tmp_path):
    first = training_of(1)
    run(first, 1)
    poptorch.Checkpoint(tmp_path / "run.pt", model=first).save()
    model = Net()
    other = poptorch.trainingModel(model, poptorch.Options().replicationFactor(4))
    with pytest.raises(CheckpointError, match="2 replicas then, 4 now"):
        poptorch.Checkpoint(tmp_path / "run.pt", model=other).load()


def test_what_cannot_be_kept_is_refused_before_the_file_changes(tmp_path):
    saved = poptorch.Checkpoint(tmp_path / "run.pt", model=nn.Linear(2, 2))
    saved.save(epoch=1)
    with pytest.raises(CheckpointError, match="cannot be kept"):
        saved.save(thing=object())
    assert saved.load() == {"epoch": 1}
    with pytest.raises(CheckpointError, match="number cannot be part"):
        poptorch.Checkpoint(tmp_path / "run.pt", number=3)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04"])
def test_damaged_files_are_named(tmp_path, content):
    (tmp_path / "run.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"run\.pt cannot be read"):
        poptorch.Checkpoint(tmp_path / "run.pt", model=nn.Linear(2, 2)).load()


def test_files_of_something_else_are_named(tmp_path):
    torch.save({"weights": 1}, tmp_path / "run.pt")
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        poptorch.Checkpoint(tmp_path / "run.pt", model=nn.Linear(2, 2)).load()


_KILLED_WRITER = """
import os, signal, sys, pathlib, torch
from popdist_torch.checkpoint import file
calls = [0]
def dying(real):
    def call(*args):
        calls[0] += 1
        if calls[0] == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args)
    return call
os.fsync, os.replace, os.rename = dying(os.fsync), dying(os.replace), dying(os.rename)
file.write(pathlib.Path(sys.argv[1]), {"number": 2, "filler": torch.zeros(1000)})
"""


@pytest.mark.parametrize(("moment", "expected"), [(1, 1), (2, 1), (3, 2)])
def test_a_writer_that_is_killed_leaves_a_whole_file(tmp_path, moment, expected):
    path = tmp_path / "run.pt"
    file.write(path, {"number": 1})
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED_WRITER, str(path), str(moment)], check=False
    )
    assert killed.returncode < 0
    assert file.read(path)["number"] == expected


def test_random_streams_can_be_put_back():
    training = training_of(1)
    run(training, 1)
    state = training.rng_state
    first = run(training, 1)
    assert state[0] == 1
    training.rng_state = state
    assert run(training, 1) != first  # the weights have moved on
    second = training_of(1)
    second.compile(X, Y)
    with pytest.raises(poptorch.Error, match="another number of replicas"):
        second.rng_state = state[:-1]


def test_a_folder_holds_what_a_file_holds(tmp_path):
    training = training_of(1)
    run(training)
    poptorch.Checkpoint(tmp_path / "run.pt", model=training).save(epoch=4)
    sharded = poptorch.Checkpoint(tmp_path / "run", sharded=True, model=training)
    sharded.save(epoch=3)
    sharded.save(epoch=4)
    assert [path.name for path in (tmp_path / "run").iterdir() if path.is_dir()] == ["2"]
    assert file.equal(sharded.read(), file.read(tmp_path / "run.pt"))
    (tmp_path / "run" / "3").mkdir()  # as a job that was killed while it saved leaves it
    expected = run(training)
    second = training_of(2)
    assert poptorch.Checkpoint(tmp_path / "run", model=second).load() == {"epoch": 4}
    assert run(second) == expected
    sharded.save()
    (tmp_path / "run" / "3" / "instance-0.pt").unlink()
    with pytest.raises(CheckpointError, match=r"instance-0\.pt cannot be read"):
        sharded.load()


def test_a_folder_keeps_what_a_user_has_put_there(tmp_path):
    training = training_of(1)
    run(training)
    for name in ("1", "2020", "best"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").write_text("precious")
    (tmp_path / "3").symlink_to(tmp_path / "best")
    checkpoint = poptorch.Checkpoint(tmp_path, sharded=True, model=training)
    for epoch in range(3):
        checkpoint.save(epoch=epoch)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["1", "2020", "3", "5", "best", "current"]
    for name in ("1", "2020", "3"):
        assert (tmp_path / name / "notes.txt").read_text() == "precious"
    assert checkpoint.load() == {"epoch": 2}


def test_a_file_goes_where_a_link_of_the_user_leads(tmp_path):
    training = training_of(1)
    run(training)
    (tmp_path / "disk").mkdir()
    (tmp_path / "run.pt").symlink_to("disk/run.pt")
    # A file of that name is a killed job's; a link there is not followed.
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "disk" / ".run.pt.unfinished").symlink_to(tmp_path / "precious")
    checkpoint = poptorch.Checkpoint(tmp_path / "run.pt", model=training)
    checkpoint.save(epoch=1)
    assert (tmp_path / "run.pt").is_symlink()
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["run.pt"]
    assert (tmp_path / "precious").read_text() == "precious"
    assert checkpoint.load() == {"epoch": 1}


def streams(seed):
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - what programs use
    torch.manual_seed(seed)
    return file.state()


def test_streams_of_other_layouts_stay_common_or_apart():
    """Three instances had 2, 2 and 2 replicas; new ones begin at the first or second of them."""

    def draw(owner, offset, states):
        file.restore(file.moved(states, owner, offset))
        return torch.rand(1).item(), random.random(), np.random.rand()  # noqa: S311, NPY002

    common = [streams(5)] * 3
    assert len({draw(owner, offset, common) for owner in range(3) for offset in range(2)}) == 1
    apart = [streams(seed) for seed in range(3)]
    drawn = [draw(owner, offset, apart) for owner in range(3) for offset in range(2)]
    assert all(len(set(column)) == 6 for column in zip(*drawn, strict=True))
    file.restore(apart[1])
    assert drawn[2] == (torch.rand(1).item(), random.random(), np.random.rand())  # noqa: S311, NPY002
    assert drawn == [draw(owner, offset, apart) for owner in range(3) for offset in range(2)]


def test_states_of_single_instances_are_not_given_to_others():
    alike = [{"lr": 0.1}, {"lr": 0.1}]
    require_movable("scheduler", object(), alike)
    with pytest.raises(CheckpointError, match="PD324"):
        require_movable("scheduler", object(), [{"lr": 0.1}, {"lr": 0.2}])


def test_a_state_of_another_kind_of_object_is_named(tmp_path):
    net = Net()
    objects = {
        "a training model": training_of(1),
        "a module": net,
        "an optimizer": torch.optim.SGD(net.parameters(), lr=0.1),
        "another object": torch.optim.lr_scheduler.StepLR(torch.optim.SGD(net.parameters()), 1),
    }
    for kind, saved in objects.items():
        path = tmp_path / f"{kind}.pt"
        poptorch.Checkpoint(path, model=saved).save()
        for wanted, loaded in objects.items():
            checkpoint = poptorch.Checkpoint(path, model=loaded)
            if wanted == kind:
                assert checkpoint.load() == {}
            else:
                with pytest.raises(CheckpointError, match="PD307") as raised:
                    checkpoint.load()
                assert (raised.value.value, raised.value.accepted) == (kind, wanted)
