"""Batches from another process: the same as from this one, and no trace left of it."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from typing import NamedTuple

import psutil
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import popdist_torch as poptorch
from popdist_torch import AsynchronousDataAccessor, DataLoaderMode, SharingStrategy

LENGTH = 41


def loader(place=(0, 1), *, dataset=None, **arguments):
    options = poptorch.Options().randomSeed(3).deviceIterations(2)
    options.Distributed.configureProcessId(*place)
    data = TensorDataset(torch.arange(LENGTH)) if dataset is None else dataset
    return poptorch.DataLoader(options, data, **{"batch_size": 3, **arguments})


def values(batch):
    return (batch[0] if isinstance(batch, list) else batch).tolist()


def processes(loader):
    reader = psutil.Process(loader._accessor._process.pid)
    return [reader, *reader.children(recursive=True)]


@pytest.fixture
def ended():
    made = []
    yield lambda one: made.append(one) or one
    for one in made:
        one.terminate()


ASYNC = {"mode": DataLoaderMode.Async}
REBATCHED = {"mode": DataLoaderMode.AsyncRebatched, "rebatched_worker_size": 4}


@pytest.mark.parametrize("mode", [ASYNC, REBATCHED])
@pytest.mark.parametrize(
    "arguments", [{}, {"place": (1, 2), "shuffle": True}, {"drop_last": False}]
)
def test_all_modes_read_the_same(mode, arguments, ended):
    expected = loader(**arguments)
    other = ended(loader(**arguments, **mode))
    assert len(other) == len(expected)
    assert other.combinedBatchSize == expected.combinedBatchSize == 6
    for _ in range(3):
        assert [values(b) for b in other] == [values(b) for b in expected]


def test_one_process_shuffles_by_seed_and_epoch(ended):
    one = ended(loader(shuffle=True, drop_last=False, **ASYNC))
    two = ended(loader(shuffle=True, drop_last=False, **REBATCHED))
    seen = [[v for b in one for v in values(b)] for _ in range(2)]
    assert sorted(seen[0]) == sorted(seen[1]) == list(range(LENGTH))
    assert seen[0] != seen[1]
    assert [[v for b in two for v in values(b)] for _ in range(2)] == seen


@pytest.mark.parametrize("taken", [0, 1, 6, 8])
@pytest.mark.parametrize("mode", [ASYNC, REBATCHED])
def test_reading_goes_on_where_it_stood(mode, taken, ended):
    straight = ended(loader(shuffle=True, **mode))
    seen, state = [], straight.state_dict()
    for _ in range(3):
        for batch in straight:
            seen.append(values(batch))
            if len(seen) == taken:
                state = straight.state_dict()
    resumed = ended(loader(shuffle=True, **mode))
    resumed.load_state_dict(state)
    rest = [values(b) for b in resumed]
    assert rest + [values(b) for b in resumed] == seen[taken : taken + len(rest) + 6]


@pytest.mark.parametrize("indefinitely", [True, False])
def test_an_abandoned_epoch_is_over(indefinitely, ended):
    options = {"load_indefinitely": indefinitely}
    one = ended(loader(shuffle=True, async_options=options, **ASYNC))
    other = loader(place=(0, 1), partition=poptorch.DataPartition.Interleaved, shuffle=True)
    epochs = [[values(b) for b in other] for _ in range(3)]
    assert len({str(e) for e in epochs}) == 3
    first = iter(one)
    next(first)
    again = [values(b) for b in one]
    assert len(again) == 6
    with pytest.raises(poptorch.Error, match="newer iteration"):
        next(first)
    fresh = ended(loader(shuffle=True, **ASYNC))
    assert [values(b) for b in fresh] != again
    assert [values(b) for b in fresh] == again


def test_batches_belong_to_the_program(ended):
    one = ended(loader(async_options={"buffer_size": 1, "early_preload": True}, **ASYNC))
    kept = list(one)
    assert [values(b) for b in kept] == [values(b) for b in loader()]
    kept[0][0].zero_()
    assert [values(b) for b in one] == [values(b) for b in loader()]


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Nested(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return {"a": torch.full((2,), index), "b": (torch.tensor(float(index)), f"name {index}")}


class Bare:
    """An iterable of single tensors without a length in common with torch's classes."""

    def __iter__(self):
        return (Pair(torch.tensor([[i]]), torch.tensor(i)) for i in range(3))


def test_any_nesting_travels(ended):
    (first, _) = ended(loader(dataset=Nested(), batch_size=1, **ASYNC))
    assert first["a"].tolist() == [[0, 0], [1, 1]]
    assert first["b"][0].tolist() == [0, 1]
    assert first["b"][1] == ("name 0", "name 1")
    accessor = ended(AsynchronousDataAccessor(Bare(), load_indefinitely=False))
    for _ in range(2):
        assert [(type(p), p.left.tolist(), p.right.item()) for p in accessor] == [
            (Pair, [[i]], i) for i in range(3)
        ]


class Noting(Dataset):
    """Leaves a line in a file for every sample that is read."""

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 8

    def __getitem__(self, index):
        with self.path.open("a") as notes:
            notes.write(f"{index}\n")
        return torch.tensor(index)

    def wait_for(self, count):
        deadline = time.monotonic() + 30
        while (read := self.path.read_text().count("\n")) < count:
            assert time.monotonic() < deadline, f"{read} of {count} samples were read"
            time.sleep(0.02)


def test_reading_goes_ahead_before_and_between_iterations(tmp_path, ended):
    data = Noting(tmp_path / "notes")
    one = ended(loader(dataset=data, batch_size=1, async_options={"early_preload": True}, **ASYNC))
    data.wait_for(3 * 2)  # the buffer's three batches, before anything was asked for
    assert len(list(one)) == 4
    data.wait_for(8 + 3 * 2)  # the next epoch's first batches


def test_reading_waits_where_it_is_told_to(tmp_path, ended):
    data = Noting(tmp_path / "notes")
    options = {"load_indefinitely": False, "buffer_size": 9}
    one = ended(loader(dataset=data, batch_size=1, async_options=options, **ASYNC))
    assert data.path.read_text().count("\n") == 2  # the first batch only
    assert len(list(one)) == 4
    assert data.path.read_text().count("\n") == 8
    assert len(list(one)) == 4
    assert data.path.read_text().count("\n") == 16


class Failing(Dataset):
    def __init__(self, at, how):
        self.at, self.how = at, how

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == self.at:
            self.how()
        return torch.ones(1)


def raises():
    raise ValueError("the sample is broken")


def dies():
    os.kill(os.getpid(), signal.SIGKILL)


class Empty(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("dataset", "what"),
    [
        (Failing(0, raises), "failed to start.*the sample is broken"),
        (Failing(0, dies), "failed to start.*died"),
        (Empty(), "failed to start.*no batch"),
    ],
)
def test_a_data_set_without_a_first_batch_fails_at_once(dataset, what):
    with pytest.raises(poptorch.Error, match=f"(?s){what}"):
        loader(dataset=dataset, batch_size=1, **ASYNC)


@pytest.mark.parametrize(
    ("how", "what"), [(raises, "the sample is broken"), (dies, "(?s)died.*-9")]
)
def test_a_failure_in_the_middle_is_an_error_and_no_hang(how, what, ended):
    batches = iter(ended(loader(dataset=Failing(8, how), batch_size=1, drop_last=False, **ASYNC)))
    with pytest.raises(poptorch.Error, match=what):
        list(batches)


@pytest.mark.parametrize(
    "second",
    [torch.ones(2), torch.ones(1, 1), torch.tensor([0.1], dtype=torch.float64)],  # no float32
)
def test_batches_keep_the_shape_of_the_first(second, ended):
    batches = iter(ended(AsynchronousDataAccessor([torch.ones(1), second])))
    with pytest.raises(poptorch.Error, match="shapes and types of the first one"):
        list(batches)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(LENGTH))


def test_streams_are_joined_too(ended):
    one = ended(loader(dataset=Stream(), drop_last=False, **REBATCHED))
    for _ in range(2):
        assert [len(b) for b in one] == [6] * 6 + [5]
    next(iter(one))
    with pytest.raises(AssertionError, match="can only start over"):
        one.load_state_dict(one.state_dict())
    other = ended(loader(dataset=Stream(), drop_last=False, **ASYNC))
    seen = [values(b) for b in other]
    batches = iter(other)
    next(batches), next(batches)
    resumed = ended(loader(dataset=Stream(), drop_last=False, **ASYNC))
    resumed.load_state_dict(other.state_dict())
    assert [values(b) for b in resumed] == seen[2:]


def test_what_cannot_be_sent_says_so():
    with pytest.raises(AssertionError, match="cannot be sent"):
        AsynchronousDataAccessor([lambda: 1])
    with pytest.raises(AssertionError, match="generator"):
        loader(shuffle=True, generator=torch.Generator(), **ASYNC)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({**REBATCHED, "rebatched_worker_size": 7}, "larger than the combined batch of 6"),
        ({**ASYNC, "async_options": {"rebatched_size": 2}}, "cannot hold rebatched_size"),
        ({**ASYNC, "async_options": {"buffer_size": 0}}, "buffer_size"),
        ({**REBATCHED, "batch_size": None, "drop_last": False}, "needs a batch_size"),
    ],
)
def test_wrong_arguments_are_errors(arguments, what):
    with pytest.raises(AssertionError, match=what):
        loader(**arguments)


def test_pieces_of_workers_have_no_effect_in_other_modes(ended):
    plain, pieces = (ended(loader(**ASYNC, **more)) for more in ({}, {"rebatched_worker_size": 2}))
    assert [values(batch) for batch in plain] == [values(batch) for batch in pieces]
    assert len(loader(rebatched_worker_size=2)) == len(loader())


def test_a_loader_has_one_accessor(ended):
    with pytest.raises(poptorch.Error, match="an accessor already"):
        AsynchronousDataAccessor(ended(loader(**ASYNC)))
    joined = ended(AsynchronousDataAccessor(loader(), rebatched_size=9))
    assert [values(b) for b in joined] == [
        list(range(start, start + 9)) for start in range(0, 36, 9)
    ]


@pytest.mark.parametrize("strategy", [SharingStrategy.Fork, SharingStrategy.ForkServer])
def test_a_terminated_process_is_gone(strategy):
    one = loader(num_workers=1, async_options={"sharing_strategy": strategy}, **REBATCHED)
    two = loader(async_options={"sharing_strategy": strategy}, **ASYNC)
    next(iter(one))
    started = processes(one) + processes(two)
    # The two readers, and a worker that was forked, as the program would have.
    assert len(started) == 3
    one.terminate()
    with pytest.raises(poptorch.Error, match="terminated"):
        iter(one)
    del two
    _, alive = psutil.wait_procs(started, timeout=20)
    assert not alive


def test_the_process_ends_with_a_killed_program(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import os, torch
            import popdist_torch as poptorch

            if __name__ == "__main__":
                accessor = poptorch.AsynchronousDataAccessor([torch.ones(1)] * 9)
                print(accessor._process.pid, flush=True)
                next(iter(accessor))
                os.kill(os.getpid(), 9)
            """
        )
    )
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -9
    deadline = time.monotonic() + 20
    while psutil.pid_exists(int(done.stdout)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(int(done.stdout))


def test_a_program_without_a_guard_is_told(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import torch, popdist_torch as p\np.AsynchronousDataAccessor([torch.ones(1)])\n"
    )
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "worker thread failed to start" in done.stderr
    assert 'if __name__ == "__main__"' in done.stderr


class OtherTypes(Dataset):
    """Classes that are floating in a later batch."""

    def __init__(self, last):
        self._last = last

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor(index if index < 2 else self._last)


def test_a_type_of_later_batches_changes_where_no_value_does():
    # Batches of samples: [0, 1] of whole numbers, and [2.0, 2.0] or [2.5, 2.5].
    options = poptorch.Options()

    def read(last):
        made = poptorch.DataLoader(
            options, OtherTypes(last), batch_size=2, mode=DataLoaderMode.Async
        )
        batches = list(made)
        made.terminate()
        return batches

    first, second = read(2.0)
    assert first.dtype == second.dtype == torch.int64
    assert [first.tolist(), second.tolist()] == [[0, 1], [2, 2]]
    with pytest.raises(poptorch.Error, match="PD395"):
        read(2.5)
