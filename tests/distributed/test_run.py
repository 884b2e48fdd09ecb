"""`popdist.run` with real jobs: answers, errors, interrupts, threads, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import types
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

import popdist
from tests.distributed.jobs import run_command

ROOT = Path(__file__).resolve().parents[2]
SLEEPER = """
import os, signal, sys, time
import popdist

# A shell starts programs in the background with this signal ignored, and so their tests.
signal.signal(signal.SIGINT, signal.default_int_handler)

def wait(folder):
    import pathlib, popdist
    pathlib.Path(folder, str(os.getpid())).touch()
    print("waiting", flush=True)
    time.sleep(600)

try:
    popdist.run(wait, args=(sys.argv[1],), num_instances=2, grace_period=2)
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(7)
"""


class NoTrainingError(Exception):
    """Which needs two arguments, so that pickle cannot make it again."""

    def __init__(self, step, why):
        super().__init__(f"step {step}: {why}")


def sum_over_all(values):
    """On each instance its own values; the sum comes from Horovod."""
    import horovod.torch as hvd
    import torch

    popdist.init()
    index = popdist.getInstanceIndex()
    total = hvd.allreduce(torch.tensor(values[index]), op=hvd.Sum)
    return index, popdist.getNumTotalReplicas(), total.numpy()


def fail(index, error):
    if popdist.getInstanceIndex() == index:
        raise error
    time.sleep(60)


def end(how, value):
    if popdist.getInstanceIndex() == 1:
        how(value)
    return "ended"


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0] == "Z"
    except OSError:
        return True


def all_gone(pids):
    until = time.monotonic() + 10
    while not all(map(gone, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    return all(map(gone, pids))


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    """A folder for temporary files in which everything that is left can be seen."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    until = time.monotonic() + 5
    while list(folder.iterdir()) and time.monotonic() < until:
        time.sleep(0.05)
    assert list(folder.iterdir()) == []


def test_answers_come_by_instance_with_arrays_and_the_exchange_works():
    values = [np.array([1.0, 2.0]), np.array([30.0, 40.0])]
    answers = popdist.run(sum_over_all, args=(values,), num_instances=2, num_replicas=4)
    assert [answer[:2] for answer in answers] == [(0, 4), (1, 4)]
    for _, _, total in answers:
        np.testing.assert_array_equal(total, [31.0, 42.0])


def test_replicas_need_not_divide_evenly():
    def local():
        return popdist.topology().num_local_replicas

    assert popdist.run(local, num_instances=2, num_replicas=3) == [2, 1]


def test_options_are_those_of_the_command_line_and_output_is_streamed(tmp_path):
    result = tmp_path / "result.json"
    offset = 10

    def say(word):  # a closure
        sys.stdout.write(f"{word} {os.environ['A']} {popdist.getInstanceIndex() + offset} \u6f22\n")
        sys.stderr.write("an error\n")
        return types.SimpleNamespace(word=word)

    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        answers = popdist.run(
            say, kwargs={"word": "hello"}, num_instances=2, tag_output=True, print_topology=True,
            env={"A": "red one"}, json=result, timeout=100,
        )  # fmt: skip
    assert [answer.word for answer in answers] == ["hello", "hello"]
    lines = out.getvalue().splitlines()
    assert sorted(line for line in lines if "hello" in line) == [
        "[1,0]<stdout>:hello red one 10 \u6f22",
        "[1,1]<stdout>:hello red one 11 \u6f22",
    ]
    assert any("Replicas" in line or "replicas" in line for line in lines)
    assert sorted(err.getvalue().splitlines()) == [f"[1,{i}]<stderr>:an error" for i in (0, 1)]
    assert json.loads(result.read_text())["success"] is True


def test_what_an_instance_raises_is_raised_here(capsys):
    with pytest.raises(popdist.JobError) as raised:
        popdist.run(fail, args=(1, KeyError("weights")), num_instances=2)
    error = raised.value
    assert (error.code, error.instance, error.exit_code) == ("PD113", 1, 1)
    assert isinstance(error.__cause__, KeyError)
    assert "instance 1 of 2 raised KeyError: 'weights'" in str(error)
    assert "in fail\n    raise error\nKeyError: 'weights'" in error.traceback
    assert "popdist/runner" not in error.traceback
    assert "instance 1 on" in capsys.readouterr().err  # as from a command line

    def fail_late():
        raise NoTrainingError(3, "no data")

    with pytest.raises(popdist.JobError) as raised:
        popdist.run(fail_late)
    assert raised.value.__cause__ is None  # it cannot be made again, and its text says it all
    assert "NoTrainingError: step 3: no data" in str(raised.value)


@pytest.mark.parametrize(
    ("how", "value", "code", "words"),
    [
        (sys.exit, 3, 3, "instance 1 on localhost"),
        (os._exit, 0, 0, "without an answer"),
        (lambda number: os.kill(os.getpid(), number), 9, 137, "signal 9 (SIGKILL)"),
    ],
    ids=["exit code", "no answer", "signal"],
)
def test_another_end_is_an_error_too(how, value, code, words):
    with pytest.raises(popdist.JobError) as raised:
        popdist.run(end, args=(how, value), num_instances=2)
    assert (raised.value.code, raised.value.exit_code, raised.value.instance) == ("PD114", code, 1)
    assert words in str(raised.value)


def test_limits_refusals_and_answers_that_cannot_travel():
    with pytest.raises(popdist.JobError) as raised:
        popdist.run(time.sleep, args=(60,), num_instances=2, timeout=1)
    assert (raised.value.code, raised.value.exit_code) == ("PD114", 124)
    with pytest.raises(popdist.PopdistError, match="PD104") as refused:
        popdist.run(time.sleep, args=(60,), mpirun="/no/such/mpirun")
    assert refused.value.value == "/no/such/mpirun"
    with pytest.raises(popdist.JobError, match="PD115") as raised:
        popdist.run(lambda: (one for one in "ab"))
    assert "generator" in str(raised.value)
    assert popdist.run(sys.exit, args=(0,)) == [None]
    assert popdist.run(print, num_instances=2, dry_run=True) == []


def test_a_restarted_job_answers_for_its_last_start(tmp_path):
    def once():
        mark = tmp_path / f"tried.{popdist.getInstanceIndex()}"
        if not mark.exists():
            mark.touch()
            raise OSError("the first time")
        return "the second time"

    answers = popdist.run(once, num_instances=2, max_restarts=1)
    assert answers == ["the second time"] * 2


def test_jobs_run_in_threads_at_the_same_time():
    found = {}

    def start(number):
        found[number] = popdist.run(lambda: (number, popdist.getInstanceIndex()), num_instances=2)

    threads = [threading.Thread(target=start, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [(number, 0), (number, 1)] for number in range(2)}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_job_ends_with_its_caller_and_nothing_is_left(tmp_path, number):
    """A script, so without any `if __name__ == "__main__"`."""
    script = tmp_path / "script.py"
    script.write_text(SLEEPER)
    marks = tmp_path / "marks"
    marks.mkdir()
    with subprocess.Popen(
        [sys.executable, script, marks],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True,
    ) as caller:  # fmt: skip
        assert [caller.stdout.readline() for _ in range(2)] == ["waiting\n"] * 2
        caller.send_signal(number)
        rest = caller.stdout.read()
    assert caller.returncode == (7 if number == signal.SIGINT else -number)
    if number == signal.SIGINT:
        assert "interrupted" in rest
    pids = [int(path.name) for path in marks.iterdir()]
    assert len(pids) == 2
    assert all_gone(pids)


_PEAK = """
import sys, numpy as np, popdist
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))
def here(data):
    return peak(), len(data)
size = 300 << 20
before = peak()
data = np.ones(size, np.uint8) if sys.argv[1] == "array" else b"x" * size
there = popdist.run(here, args=(data,), num_instances=2)
after_arguments = peak()
del data
back = popdist.run(
    lambda kind: np.ones(size // 2, np.uint8) if kind == "array" else b"x" * (size // 2),
    args=(sys.argv[1],), num_instances=2)
assert [len(one) for one in back] == [size // 2] * 2
print(*[(used - before) / size for used in (after_arguments, peak(), *(used for used, _ in there))])
"""


@pytest.mark.parametrize("kind", ["array", "bytes"])
def test_large_arguments_and_results_take_little_more_memory_than_their_size(kind):
    status, output = run_command([sys.executable, "-c", _PEAK, kind], timeout=240)
    assert status == 0, output
    assert all(float(word) < 1.3 for word in output.split()), output
