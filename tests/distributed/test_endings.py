"""However a job ends, its exit code tells the truth and nothing of it stays behind."""

import os
import signal
import sys
import time
import uuid

import pytest

from tests.distributed.endings import DETACHING, STUBBORN, Job, children
from tests.distributed.jobs import LAUNCHER, run_command


@pytest.fixture
def job(mpirun, tmp_path):
    started = []

    def start(*words, **more):
        started.append(Job([f"--mpirun={mpirun}"], tmp_path, *words, **more))
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


@pytest.mark.parametrize(
    "part", [lambda job: job.front(0), lambda job: job.guard], ids=["front", "guard"]
)
def test_nothing_survives_a_guards_death(job, part):
    running = job("ignore").until_ready()
    os.kill(part(running), signal.SIGKILL)
    code, errors = running.end()
    assert code == 137
    assert "guard" in errors


def test_a_reader_that_goes_away_ends_the_job(job):
    running = job(program=STUBBORN.replace("time.sleep(300)", "while True: print('more')"))
    running.until_ready().process.stdout.close()
    running.process.stdout = None
    assert running.end()[0] == 128 + signal.SIGPIPE


def kill(*parts):
    """Kills parts of a job."""
    for pid in parts:
        os.kill(pid, signal.SIGKILL)


def stop_the_guard_and_ask(running):
    os.kill(running.guard, signal.SIGSTOP)
    running.process.terminate()


def stop_the_guard_and_kill_poprun(running):
    os.kill(running.guard, signal.SIGSTOP)
    running.process.kill()


# What ends a job whose programs have detached processes in every way, the words for the program,
# the exit code, and what is said. Nothing may survive any of it.
FAULTS = {
    "both end well": (None, ["0"], 0, ""),
    "both fail": (None, ["3"], 3, "ended with exit code 3"),
    "a program is killed": (lambda job: kill(job.program(1)), [], 137, "SIGKILL"),
    "an interrupt": (lambda job: job.process.send_signal(signal.SIGINT), [], 130, "SIGINT"),
    "poprun is killed": (lambda job: job.process.kill(), [], -9, ""),
    "mpirun is killed": (lambda job: kill(job.mpirun), [], 137, "mpirun was killed"),
    "the guard is killed": (lambda job: kill(job.guard), [], 137, "guard"),
    "a front is killed": (lambda job: kill(job.front(0)), [], 137, "guard"),
    "the guard and a front": (lambda job: kill(job.front(0), job.guard), [], 137, "guard"),
    "the guard is stopped": (stop_the_guard_and_ask, [], 143, "SIGTERM"),
    "a stopped guard, and poprun is killed": (stop_the_guard_and_kill_poprun, [], -9, ""),
}


@pytest.mark.parametrize("name", FAULTS)
def test_nothing_that_was_detached_survives(job, name):
    fault, words, expected, said = FAULTS[name]
    running = job(*words, program=DETACHING).until_ready()
    if fault is not None:
        fault(running)
    code, errors = running.end(grace=4 if fault is stop_the_guard_and_kill_poprun else 2)
    assert code == expected, errors
    assert said in errors


def test_what_an_instance_detached_ends_with_it_and_not_with_the_job(mpirun):
    code = (
        "import os, subprocess, sys, time\n"
        "words, index = sys.argv[1:], int(os.environ['POPDIST_INSTANCE_INDEX'])\n"
        "daemon = [sys.executable, '-c', 'import time; time.sleep(300)', f'{words[0]}-{index}']\n"
        "subprocess.Popen(daemon, start_new_session=True)\n"
        "def alive(which):\n"
        "    listed = subprocess.check_output(['ps', '-wweo', 'args'], text=True).splitlines()\n"
        "    return sum(line.endswith(f'time.sleep(300) {words[0]}-{which}') for line in listed)\n"
        "assert alive(index)\n"
        "until = time.monotonic() + 20\n"
        "while index and alive(0):\n"
        "    assert time.monotonic() < until\n"
        "    time.sleep(0.1)\n"
        "if index: print('only mine:', alive(0), alive(1))"
    )
    status, output = run_command(
        [*LAUNCHER, f"--mpirun={mpirun}", "-np", "2", sys.executable, "-c", code, uuid.uuid4().hex]
    )
    assert (status, output) == (0, "only mine: 0 1\n"), output


def test_a_daemon_may_stay_if_the_user_says_so(mpirun, tmp_path):
    running = Job([f"--mpirun={mpirun}", "--allow-daemons=yes"], tmp_path, "0", program=DETACHING)
    try:
        running.until_ready().process.wait(timeout=30)
        assert len(running.alive()) == 10  # five of each instance
    finally:
        running.clean_up()
