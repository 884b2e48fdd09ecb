"""Hosts that vanish while a job runs: it ends in bounded time, and nothing of it is left."""

import signal
import time

import pytest

from tests.distributed.endings import Job
from tests.hosts.network import Hosts, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"LOST HOSTS ARE NOT TESTED: {missing()}")

# Trains for ever over real Horovod, and says when it has begun.
TRAINING = """
import subprocess, sys
import torch, horovod.torch as hvd
hvd.init()
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", sys.argv[1]])
for step in range(10**9):
    hvd.allreduce(torch.ones(1000), name="gradient")
    if step == 3:
        print("ready", flush=True)
"""


@pytest.fixture
def hosts(tmp_path):
    with Hosts(tmp_path, name="poplost", subnet=38) as hosts:
        yield hosts


@pytest.fixture
def start(hosts, tmp_path):
    from popdist.poprun.machines.find_mpirun import locate_mpirun

    started = []

    def start(*options, **more):
        found = locate_mpirun({}).path
        job = Job(
            [
                f"--mpirun={found}",
                f"--host={','.join(hosts.addresses)}",
                f"--mpi-global-args={hosts.mpirun_options(found)}",
                "--host-timeout=2",
                *options,
            ],
            tmp_path,
            hosts=hosts,
            **more,
        )
        started.append(job)
        return job.until_ready()

    yield start
    for job in started:
        job.clean_up()


@pytest.mark.parametrize("training", [True, False], ids=["training", "sleeping"])
def test_a_cut_link_ends_the_job_on_both_sides(hosts, start, training):
    job = start(**({"program": TRAINING} if training else {}))
    hosts.cut(1)
    # The other side has no way to hear of it, and must find out by itself.
    code, errors = job.end(timeout=30, grace=12)
    assert code == 1
    assert f"host {hosts.addresses[1]} has not been heard of for 2 s" in errors
    assert "instance 1 ran there" in errors


def test_a_host_that_dies_ends_the_job(hosts, start):
    job = start(program=TRAINING)
    hosts.kill(1)
    code, errors = job.end(timeout=30)
    assert code == 1
    assert f"host {hosts.addresses[1]} has not been heard of" in errors


def test_a_link_that_is_mended_in_time_costs_nothing(hosts, start):
    job = start(program=TRAINING.replace("10**9", "400"))
    hosts.cut(1)
    time.sleep(0.5)
    hosts.mend(1)
    code, errors = job.end(timeout=60)
    assert code == 0, errors


def test_a_launcher_that_was_stopped_itself_blames_no_host(start):
    job = start(program=TRAINING.replace("10**9", "20000"))
    job.process.send_signal(signal.SIGSTOP)
    time.sleep(4)
    job.process.send_signal(signal.SIGCONT)
    time.sleep(1)
    job.process.send_signal(signal.SIGTERM)
    code, errors = job.end(timeout=30, grace=4)
    assert code == 143, errors
    assert "has not been heard of" not in errors
