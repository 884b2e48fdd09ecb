"""Ends of jobs that are no row of the fault matrix (`tests.distributed.faults`)."""

import signal
import sys
import time
import uuid

import pytest

from popdist.poprun.protocol.guard_argv import Fronts
from tests.distributed.endings import DETACHING, STUBBORN, Job, children
from tests.distributed.jobs import LAUNCHER, ROOT, run_command


@pytest.fixture
def job(mpirun, tmp_path):
    started = []

    def start(*words, **more):
        started.append(Job([f"--mpirun={mpirun}"], tmp_path, *words, **more))
        return started[-1]

    yield start
    for one in started:
        one.clean_up()


def test_an_interrupt_during_the_start(job):
    running = job()
    while not children(running.process.pid):
        time.sleep(0.001)
    running.process.send_signal(signal.SIGINT)
    assert running.end()[0] == 130


def test_a_reader_that_goes_away_ends_the_job(job):
    running = job(program=STUBBORN.replace("time.sleep(300)", "while True: print('more')"))
    running.until_ready().process.stdout.close()
    running.process.stdout = None
    assert running.end()[0] == 128 + signal.SIGPIPE


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


def test_processes_of_a_spared_one_are_left_alone():
    code = "import subprocess\nwhile True: assert subprocess.call(['true']) == 0"
    sweep = (
        "import os, subprocess, sys, time\n"
        "from popdist.poprun.protocol.processes import adopt_orphans, kill_descendants\n"
        "adopt_orphans()\n"
        f"spared = subprocess.Popen([sys.executable, '-c', {code!r}])\n"
        "other = subprocess.Popen(['sleep', '300'])\n"
        "for _ in range(200): kill_descendants(0.0, frozenset({spared.pid}))\n"
        "assert other.wait() == -9\n"
        "assert spared.poll() is None\n"
        "spared.kill()"
    )
    status, output = run_command([sys.executable, "-c", sweep])
    assert (status, output) == (0, "")


def test_a_front_whose_guard_was_killed_before_it_began_ends(tmp_path):
    fronts = Fronts(str(tmp_path), 1)
    fronts.close()
    env = {"POPRUN_FRONT": str(tmp_path), "OMPI_COMM_WORLD_RANK": "0"}
    code, output = run_command(["sh", ROOT / "popdist/poprun/guard/front.sh"], env=env, timeout=20)
    assert (code, output) in [(137, ""), (-signal.SIGPIPE, "")]
