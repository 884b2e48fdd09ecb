"""A job that loses a host goes on with the same replicas, and takes the host again later."""

import json
import subprocess
import sys
import time
from contextlib import ExitStack

import numpy as np
import pytest

from popdist.poprun.machines.find_mpirun import locate_mpirun
from tests.distributed.jobs import LAUNCHER, ROOT
from tests.distributed.warm import python
from tests.hosts.network import Hosts, missing

pytestmark = pytest.mark.skipif(
    bool(missing()), reason=f"SEVERAL HOSTS ARE NOT TESTED: {missing()}"
)

# Each replica adds to the sum what its global index and the step give, so the sum tells whether
# every replica was there in every step, whichever instance had it.
PROGRAM = """
import json, os, pathlib, sys, time
import numpy as np
import horovod.torch as hvd
import popdist, torch
hvd.init()
here = popdist.topology()
folder = pathlib.Path(sys.argv[1])
state = folder / "checkpoint"
step, total = json.loads(state.read_text()) if state.exists() else (0, 0)
first, mine = here.replica_index_offset, here.num_local_replicas
with open(folder / "starts", "a") as file:
    file.write(f"{here.restart_count} {here.instance_index}/{here.num_instances} {first}+{mine}\\n")
while step < 60:
    part = sum((replica + 1) * (step + 1) for replica in range(first, first + mine))
    total += int(hvd.allreduce(torch.tensor([part]), op=hvd.Sum).item())
    step += 1
    if here.instance_index == 0:
        fresh = folder / "fresh"
        fresh.write_text(json.dumps((step, total)))
        fresh.replace(state)
    if here.restart_count == 1 and step > 40 and (folder / "mended").exists():
        os._exit(3)
    # The whole job never comes to its end at first, nor the small one before the link is mended.
    while step == 20 and here.restart_count == 0 or step == 45 and here.restart_count == 1:
        hvd.allreduce(torch.tensor([0.0]))
        time.sleep(0.02)
        if here.restart_count == 1 and (folder / "mended").exists():
            os._exit(3)
print("total", total, "by", here.num_instances, flush=True)
"""


def test_a_lost_host_is_left_out_and_taken_again_with_the_same_replicas(tmp_path):
    (tmp_path / "hosts").mkdir()
    with Hosts(tmp_path / "hosts", name="popfew", subnet=37) as hosts:
        found = locate_mpirun({}).path
        first, second = hosts.addresses
        state, result = tmp_path / "checkpoint", tmp_path / "result"
        with subprocess.Popen(
            [*LAUNCHER, f"--mpirun={found}", f"--host={first},{second}", "--host-timeout=3",
             f"--mpi-global-args={hosts.mpirun_options(found)}", "-np", "2", "--num-replicas=5",
             "--max-restarts=2", "--min-instances=1", f"--json={result}", "--grace-period=1",
             sys.executable, "-c", PROGRAM, tmp_path],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as job:  # fmt: skip

            def wait_for(step):
                until = time.monotonic() + 60
                while time.monotonic() < until and job.poll() is None:
                    if state.exists() and json.loads(state.read_text())[0] >= step:
                        return
                    time.sleep(0.05)
                job.kill()
                pytest.fail(f"no step {step}: {job.stdout.read()}")

            wait_for(20)
            hosts.cut(1)
            wait_for(45)
            hosts.mend(1)
            (tmp_path / "mended").touch()
            output, _ = job.communicate(timeout=90)
        assert job.returncode == 0, output
        # 1 + ... + 5 for the replicas, times 1 + ... + 60 for the steps, as if undisturbed.
        assert [line for line in output.splitlines() if line.startswith("total")] == [
            f"total {15 * 60 * 61 // 2} by 2"
        ] * 2
        assert f"restarting without {second}: 1 of 2 instances have all 5 replicas" in output
        assert f"\n  {second}: it cannot be reached (" in output
        assert sorted((tmp_path / "starts").read_text().splitlines()) == [
            "0 0/2 0+3", "0 1/2 3+2", "1 0/1 0+5", "2 0/2 0+3", "2 1/2 3+2",
        ]  # fmt: skip
        told = json.loads(result.read_text())
        assert (told["success"], told["restarts"], len(told["instances"])) == (True, 2, 2)


ADAPTERS = {"torch": 0.0, "onnx": 1e-6, "tf": 1e-5}
"""The stated tolerance of each adapter; PyTorch has none with placement invariance."""


class Trainings:
    """Jobs of all adapters in folders of their own.

    Args:
        folder: Where their folders and logs are.
    """

    def __init__(self, folder):
        self._folder = folder
        self._jobs = {}

    def start(self, name, adapter, *words):
        (self._folder / name).mkdir()
        settings = ("OMP_NUM_THREADS=1", "TF_CPP_MIN_LOG_LEVEL=3", f"PYTHONPATH={ROOT}")
        start = python("tensorflow" if adapter == "tf" else "torch")
        program = [*start, "-m", "tests.hosts.lose_hosts", adapter, self._folder / name]
        with (self._folder / f"{name}.log").open("w") as log:
            self._jobs[name] = subprocess.Popen(
                [*LAUNCHER, *(f"--env={one}" for one in settings), *words, "--num-replicas=4",
                 *program],
                cwd=ROOT, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def tell(self, name, mark):
        """Gives a job a word."""
        (self._folder / name / mark).touch()

    def wait_for(self, mark):
        """Waits until all jobs have given a word."""
        until = time.monotonic() + 120
        for name, job in self._jobs.items():
            while not (self._folder / name / mark).exists():
                over = time.monotonic() > until or job.poll() is not None
                assert not over, self._log(name)
                time.sleep(0.05)

    def end(self, name):
        """What a job has said until its end, and its result."""
        try:
            code = self._jobs[name].wait(timeout=120)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{name} has not ended: {self._log(name)}")
        assert code == 0, self._log(name)
        return self._log(name), dict(np.load(self._folder / name / "result.npz"))

    def kill(self):
        for job in self._jobs.values():
            job.kill()

    def _log(self, name):
        return (self._folder / f"{name}.log").read_text()


@pytest.fixture(scope="module")
def trained_while_a_host_died_twice(tmp_path_factory):
    """The results of trainings by one undisturbed process, and of those whose host died twice.

    The trainings of all adapters run at the same time, so they share the host's two deaths.
    """
    folder = tmp_path_factory.mktemp("lost")
    (folder / "hosts").mkdir()
    found = locate_mpirun({}).path
    jobs = Trainings(folder)
    with ExitStack() as stack:
        stack.callback(jobs.kill)
        hosts = stack.enter_context(Hosts(folder / "hosts", name="popdie", subnet=36))
        for name in ADAPTERS:
            jobs.start(name, name, "-np", "2", f"--mpirun={found}",
                       f"--host={','.join(hosts.addresses)}", "--host-timeout=3",
                       f"--mpi-global-args={hosts.mpirun_options(found)}",
                       "--max-restarts=3", "--min-instances=1", "--grace-period=1")  # fmt: skip
        jobs.wait_for("waits.0")
        hosts.kill(1)
        jobs.wait_for("waits.1")  # on the first host alone
        hosts.start_again(1)
        for name in ADAPTERS:
            jobs.tell(name, "returned")
        jobs.wait_for("waits.2")
        hosts.kill(1)
        disturbed = {name: jobs.end(name) for name in ADAPTERS}
        for name in ADAPTERS:
            jobs.start(f"whole {name}", name, "-np", "1")
            jobs.tell(f"whole {name}", "undisturbed")
        whole = {name: jobs.end(f"whole {name}")[1] for name in ADAPTERS}
    for log, _ in disturbed.values():
        assert log.count("1 of 2 instances have all 4 replicas") == 2, log
    return {name: (whole[name], disturbed[name][1]) for name in ADAPTERS}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_host_that_dies_twice_changes_nothing(adapter, trained_while_a_host_died_twice):
    whole, disturbed = trained_while_a_host_died_twice[adapter]
    assert whole.keys() == disturbed.keys()
    for name, expected in whole.items():
        tolerance = ADAPTERS[adapter]
        np.testing.assert_allclose(disturbed[name], expected, rtol=tolerance, atol=tolerance)
