"""Programs that a nursery runs have all that they would have if Python had started them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed import warm
from tests.distributed.jobs import JobFailedError, run_job

ABOUT = """
import json, os, resource, sys
print(json.dumps({
    "argv": sys.argv, "path": sys.path, "name": __name__, "directory": os.getcwd(),
    "environ": {name: value for name, value in os.environ.items() if name not in ("_", "SHLVL")},
    "umask": os.umask(0), "cores": sorted(os.sched_getaffinity(0)),
    "files": resource.getrlimit(resource.RLIMIT_NOFILE), "stdin": sys.stdin.read(),
    "read": os.read(int(os.environ["READER"]), 9).decode(), "line": sys.stdout.line_buffering,
    "at once": sys.stdout.write_through, "words": sys.orig_argv, "startup": vars(sys).get("mark"),
    "tests": [name for name in sys.modules if name.startswith("tests")],
}))
raise SystemExit(7)
"""


@pytest.fixture(scope="module")
def nursed():
    """The words that start a program in a nursery of PyTorch."""
    return warm.python("torch")


def start(words, *, env=None, **more):
    return subprocess.Popen(
        words, env={**warm.environment(), **(env or {})}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more,
    )  # fmt: skip


def finish(words, **more):
    with start(words, **more) as process:
        out, err = process.communicate(timeout=100)
    return process.returncode, out, err


def test_a_program_finds_what_python_would_give_it(nursed, tmp_path):
    (tmp_path / "module.py").write_text(ABOUT)
    shell = 'umask 027; ulimit -n 640; echo words | taskset -c 0 "$@"'
    startup = tmp_path / "startup"
    startup.mkdir()
    (startup / "sitecustomize.py").write_text("import sys\nsys.mark = sys.path[1:2]")
    customized = {"PYTHONPATH": f"{startup}:{warm.ROOT}"}
    for program, more in (
        (["-c", ABOUT], {}),
        ([str(tmp_path / "module.py")], {}),
        (["-m", "module"], {}),
        (["-u", "-m", "module"], {}),
        ([str(tmp_path / "module.py")], customized),
    ):
        answers = []
        for python in ([sys.executable], nursed):
            reader, writer = os.pipe()
            os.write(writer, b"a message")
            os.dup2(reader, 300)
            code, out, err = finish(
                ["sh", "-c", shell, "sh", *python, *program, "one", "two"],
                env={"READER": "300", "A_NAME": "a \udcff value", "RANK": "1", **more},
                pass_fds=[300],
                cwd=tmp_path,
            )
            for fd in (reader, writer, 300):
                os.close(fd)
            assert (code, err) == (7, "")
            answers.append(json.loads(out))
        assert answers[1] == answers[0]
        assert answers[1]["read"] == "a message"
        assert answers[1]["tests"] == []
        assert (answers[1]["startup"] is None) == (not more)


@pytest.mark.parametrize(
    "code",
    [
        "raise SystemExit('a reason')",
        "def fails():\n    {}['key']\nfails()",
        "raise KeyboardInterrupt",
        "import os; os.kill(os.getpid(), 11)",
        "import os; os._exit(200)",
        """
import atexit, threading
atexit.register(print, "at the end")
threading.Timer(0.05, print, ["a thread"]).start()
""",
        "import sys\nsys.excepthook = lambda *known: print(known[1], known[2].tb_next)\n1 / 0",
    ],
)
def test_a_program_ends_as_under_python(nursed, code):
    assert finish([*nursed, "-c", code]) == finish([sys.executable, "-c", code])


def test_signals_are_passed_on_and_nothing_outlives_the_process_that_stands_for_a_program(nursed):
    program = """
import os, signal, subprocess, sys
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"heard\\n"))
child = subprocess.Popen(["sleep", "300"])
print(os.getpid(), child.pid, flush=True)
while True:
    signal.pause()
"""
    with start([*nursed, "-c", program]) as process:
        pids = [int(word) for word in process.stdout.readline().split()]
        watched = [os.pidfd_open(pid) for pid in pids]
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == "heard\n"
        process.kill()
        for fd in watched:
            assert warm.select.select([fd], [], [], 30)[0]
            os.close(fd)


def test_a_program_whose_environment_is_read_at_import_starts_as_ever(nursed):
    code = "import sys; print('torch' in sys.modules)"
    assert finish([*nursed, "-c", code])[1] == "True\n"
    for name, value in (
        ("OMP_NUM_THREADS", "2"),
        ("LD_LIBRARY_PATH", "/x"),
        ("PYTHONSAFEPATH", "1"),
    ):
        assert finish([*nursed, "-c", code], env={name: value})[1] == "False\n", name
    assert finish([*nursed, "-X", "dev", "-c", code])[1] == "False\n"


def inodes():
    *_, folder, _ = warm.python("torch")
    return sorted(path.stat().st_ino for path in Path(folder).iterdir())


def ranks():
    import random

    import numpy as np
    import torch

    drawn = [random.getrandbits(64), np.random.get_state()[1].tolist(), torch.initial_seed()]  # noqa: NPY002 - it is its seed that is looked at
    return {"hash": hash("a word"), "drawn": drawn}


def kill_the_nursery():
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()


def test_programs_share_nothing_random_and_a_dead_nursery_is_replaced(monkeypatch):
    monkeypatch.setenv(warm.OWNER, str(os.getpid()))  # no other test loses its programs
    before = inodes()
    first, second = run_job(ranks, framework="torch")
    assert first["hash"] != second["hash"]
    drawn = [answer["drawn"] for answer in (first, second, *run_job(ranks, framework="torch"))]
    assert inodes() == before
    with pytest.raises(JobFailedError, match="the nursery that ran this program has ended"):
        run_job(kill_the_nursery, framework="torch")
    assert not {*inodes()} & {*before}
    drawn += [answer["drawn"] for answer in run_job(ranks, framework="torch")]
    for values in zip(*drawn, strict=True):
        assert len({*map(str, values)}) == 6


def stand_still():
    import popdist

    popdist.init()
    signal.pause()


def test_a_job_at_its_limit_shows_the_stacks_of_all_ranks():
    with pytest.raises(JobFailedError) as caught:
        run_job(stand_still, framework="torch", timeout=12)
    assert str(caught.value).count("in stand_still") >= 2


def test_the_framework_of_a_file_is_the_only_one_that_it_imports(tmp_path):
    for text, framework in (
        ("import json", None),
        ("import torch.nn", "torch"),
        ("def f():\n    import horovod.torch as hvd", "torch"),
        ("from popdist_tf import x", "tensorflow"),
        ("import torch\ndef f():\n    import tensorflow", None),
        ("import torch\nfrom torch.nn.parallel import DistributedDataParallel", None),
    ):
        path = tmp_path / f"{len(text)}.py"
        path.write_text(text)
        assert warm.framework_of(str(path)) == framework
