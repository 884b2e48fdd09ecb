"""Restarts, grace periods and signals that are passed on, over a real mpirun."""

import os
import signal
import subprocess
import sys

import pytest

from tests.distributed.jobs import LAUNCHER, run_command

PYTHON = [sys.executable, "-c"]
COUNT = "import os, sys, popdist\ncount = popdist.topology().restart_count\n"


def poprun(*words, **more):
    return run_command([*LAUNCHER, *words], **more)


def test_a_failed_job_goes_on_from_its_checkpoint(tmp_path):
    # Each start takes one step more; the third one has nothing left to do.
    code = COUNT + (
        f"path = {str(tmp_path)!r} + '/checkpoint'\n"
        "step = int(open(path).read()) if os.path.exists(path) else 0\n"
        "assert step == count\n"
        "open(path, 'w').write(str(step + 1))\n"
        "sys.exit(step < 2)"
    )
    status, output = poprun("--max-restarts=3", *PYTHON, code)
    assert status == 0, output
    assert (tmp_path / "checkpoint").read_text() == "3"
    assert "restart 1 of 3" in output
    assert "restart 2 of 3" in output
    assert "restart 3 of 3" not in output


def test_restarts_come_to_an_end():
    status, output = poprun("--max-restarts=1", *PYTHON, COUNT + "print(count); sys.exit(7)")
    assert status == 7
    assert [line for line in output.splitlines() if line in "01"] == ["0", "1"]


@pytest.mark.parametrize("code", [2, 127])
def test_a_mistake_is_not_made_again(code):
    status, output = poprun("--max-restarts=5", *PYTHON, f"raise SystemExit({code})")
    assert status == code
    assert "restart" not in output


def test_an_interrupt_is_no_reason_to_start_again():
    with start(
        "--max-restarts=5", "import time\nprint('ready', flush=True)\ntime.sleep(300)"
    ) as job:
        job.stdout.readline()
        job.terminate()
        output = job.stdout.read()
    assert job.returncode == 143
    assert "restart" not in output


@pytest.mark.parametrize("why", ["interrupt", "failure"])
@pytest.mark.parametrize(("grace", "saved"), [("10", True), ("0.2", False)])
def test_a_program_has_the_grace_period_to_save_its_work(mpirun, why, grace, saved):
    code = (
        "import os, signal, sys, time\n"
        "def save(*_): time.sleep(2); print('saved', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "if os.environ['POPDIST_INSTANCE_INDEX'] == '1' and sys.argv[1] == 'failure':\n"
        "    time.sleep(1); sys.exit(3)\n"
        "print('ready', flush=True)\n"
        "time.sleep(300)"
    )
    with start(f"--mpirun={mpirun}", "-np", "2", f"--grace-period={grace}", code, why) as job:
        job.stdout.readline()
        if why == "interrupt":
            job.stdout.readline()
            job.terminate()
        output = job.stdout.read()
    assert job.returncode == (143 if why == "interrupt" else 3)
    assert ("saved" in output) == saved


@pytest.mark.parametrize(("option", "name"), [("USR1,USR2", "SIGUSR1"), ("WINCH", "SIGWINCH")])
def test_a_signal_reaches_every_instance(option, name):
    code = (
        "import signal, time, sys\n"
        f"signal.signal(signal.{name}, lambda *_: sys.exit(0))\n"
        "print('ready', flush=True)\n"
        "time.sleep(300)"
    )
    with start("-np", "3", f"--forward-signals={option}", code) as job:
        for _ in range(3):
            job.stdout.readline()
        os.kill(job.pid, signal.Signals[name])
        output = job.stdout.read()
    assert (job.returncode, output) == (0, "")


def test_a_signal_that_ends_the_job_cannot_be_passed_on():
    status, output = poprun("--forward-signals=USR1,TERM", "true")
    assert status == 2
    assert "[PD100]" in output
    assert "'TERM'" in output


class start:  # noqa: N801 - used as a context
    """A poprun that is running; the code is the first word with a line feed."""

    def __init__(self, *words):
        at = next(index for index, word in enumerate(words) if "\n" in word)
        self._command = [*LAUNCHER, *words[:at], *PYTHON, *words[at:]]

    def __enter__(self):
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return self.process

    def __exit__(self, *_):
        try:
            self.process.wait(timeout=30)
        finally:
            self.process.kill()
            self.process.communicate()
