"""However a job ends, its exit code tells the truth and nothing of it stays behind."""

import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from tests.distributed.jobs import LAUNCHER, ROOT

# Long enough never to be reached; how soon things end is bounded by the waits below.
STUBBORN = """
import os, signal, subprocess, sys, time
if "ignore" in sys.argv:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", sys.argv[1]])
print("ready", flush=True)
time.sleep(300)
"""


class Job:
    """A running job of two instances, each with a grandchild, all marked in their command lines."""

    def __init__(self, mpirun, tmp_path, *words, program=STUBBORN):
        self.mark = f"mark-{uuid.uuid4().hex}"
        self.folder = tmp_path
        self.process = subprocess.Popen(
            [*LAUNCHER, f"--mpirun={mpirun}", "-np", "2",
             sys.executable, "-c", program, self.mark, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
            start_new_session=True,
        )  # fmt: skip

    def clean_up(self):
        """Leaves nothing behind, whatever the test found."""
        for pid in [self.process.pid, *self.alive()]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()

    def until_ready(self):
        for _ in range(2):
            while (line := self.process.stdout.readline()) != b"ready\n":
                assert line == b"more\n", self.process.communicate()
        return self

    @property
    def mpirun(self):
        return children(self.process.pid)[0]

    def front(self, which):
        return children(self.mpirun)[which]

    def guard(self, which):
        return children(self.front(which))[0]

    def program(self, which):
        return children(self.guard(which))[0]

    def alive(self):
        """Processes of the job other than poprun."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            if int(process.name) != self.process.pid:
                with suppress(OSError):
                    if self.mark.encode() in (process / "cmdline").read_bytes():
                        found.append(int(process.name))
        return found

    def end(self, timeout=30):
        """Exit code and standard error; then checks that nothing is left within two seconds."""
        _, errors = self.process.communicate(timeout=timeout)
        until = time.monotonic() + 2
        while self.alive() and time.monotonic() < until:
            time.sleep(0.02)
        assert self.alive() == []
        # The job's private folder is gone (a killed mpirun may leave one of its own).
        assert not [path for path in self.folder.iterdir() if path.name.startswith("poprun-")]
        return self.process.returncode, errors.decode()


def children(pid):
    return sorted(
        int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    )


@pytest.fixture
def job(mpirun, tmp_path):
    started = []

    def start(*words, **more):
        started.append(Job(mpirun, tmp_path, *words, **more))
        return started[-1]

    yield start
    for one in started:
        one.clean_up()


def test_a_killed_instance_ends_the_job(job):
    running = job().until_ready()
    os.kill(running.program(1), signal.SIGKILL)
    code, errors = running.end()
    assert code == 137
    assert "was killed by signal 9 (SIGKILL)" in errors
    assert "instance " in errors


def test_a_crashed_instance_ends_the_job_and_is_named(job):
    crash = STUBBORN.replace(
        'print("ready", flush=True)',
        'print("ready", flush=True)\n'
        "if os.environ['POPDIST_INSTANCE_INDEX'] == '1': os.kill(os.getpid(), signal.SIGSEGV)",
    )
    code, errors = job(program=crash).until_ready().end()
    assert code == 139
    assert "instance 1 on localhost" in errors
    assert "SIGSEGV" in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_ends_a_willing_job(job, number):
    running = job().until_ready()
    running.process.send_signal(number)
    code, errors = running.end()
    assert code == 128 + number
    assert number.name in errors


def test_an_interrupt_ends_a_hung_job(job):
    running = job("ignore").until_ready()
    running.process.send_signal(signal.SIGINT)
    code, errors = running.end()
    assert code == 130
    assert "did not end when asked to" in errors


def test_a_second_interrupt_does_not_wait(job):
    running = job("ignore").until_ready()
    running.process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    running.process.send_signal(signal.SIGINT)
    # The first interrupt alone would grant the programs five seconds.
    code, errors = running.end(timeout=4.5)
    assert code == 130
    assert "did not end when asked to" in errors


def test_a_stopped_instance_can_be_interrupted(job):
    running = job().until_ready()
    os.kill(running.program(0), signal.SIGSTOP)
    running.process.send_signal(signal.SIGINT)
    assert running.end()[0] == 130


def test_an_interrupt_during_the_start(job):
    running = job()
    while not children(running.process.pid):
        time.sleep(0.001)
    running.process.send_signal(signal.SIGINT)
    assert running.end()[0] == 130


def test_nothing_survives_the_launchers_death(job):
    running = job("ignore").until_ready()
    running.process.kill()
    assert running.end()[0] == -signal.SIGKILL


def test_nothing_survives_mpiruns_death(job):
    running = job("ignore").until_ready()
    os.kill(running.mpirun, signal.SIGKILL)
    code, errors = running.end()
    assert code == 137
    assert "mpirun was killed by signal 9" in errors


@pytest.mark.parametrize("part", [Job.front, Job.guard], ids=["front", "guard"])
def test_nothing_survives_a_guards_death(job, part):
    running = job("ignore").until_ready()
    os.kill(part(running, 0), signal.SIGKILL)
    code, errors = running.end()
    assert code == 137
    assert "guard" in errors


def test_a_reader_that_goes_away_ends_the_job(job):
    running = job(program=STUBBORN.replace("time.sleep(300)", "while True: print('more')"))
    running.until_ready().process.stdout.close()
    running.process.stdout = None
    assert running.end()[0] == 128 + signal.SIGPIPE
