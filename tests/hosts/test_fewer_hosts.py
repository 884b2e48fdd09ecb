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
        assert sorted((tmp_path / "starts").read_text().splitlines()) == [
            "0 0/2 0+3", "0 1/2 3+2", "1 0/1 0+5", "2 0/2 0+3", "2 1/2 3+2",
        ]  # fmt: skip
        told = json.loads(result.read_text())
        assert (told["success"], told["restarts"], len(told["instances"])) == (True, 2, 2)


ADAPTERS = {"torch": 0.0, "onnx": 1e-6, "tf": 1e-5}
"""The stated tolerance of each adapter; PyTorch has none with placement invariance."""


@pytest.fixture(scope="module")
def trained_while_a_host_died_twice(tmp_path_factory):
    """The results of undisturbed trainings, and of those whose second host died twice.

    The trainings of all adapters run at the same time, so they share the host's two deaths.
    """
    folder = tmp_path_factory.mktemp("lost")
    program = [sys.executable, "-m", "tests.hosts.lose_hosts"]
    found = locate_mpirun({}).path
    environment = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    variables = [f"--env={name}={value}" for name, value in environment.items()]
    jobs = {}

    def start(name, *words):
        (folder / name).mkdir()
        log = (folder / f"{name}.log").open("w")
        adapter = name.removeprefix("whole ")
        jobs[name] = subprocess.Popen(
            [*LAUNCHER, *variables, f"--env=PYTHONPATH={ROOT}", *words, "--num-replicas=4",
             *program, adapter, folder / name],
            cwd=ROOT, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def wait_for(mark):
        until = time.monotonic() + 120
        for name in ADAPTERS:
            while not (folder / name / mark).exists():
                over = time.monotonic() > until or jobs[name].poll() is not None
                assert not over, (folder / f"{name}.log").read_text()
                time.sleep(0.05)

    (folder / "hosts").mkdir()
    with ExitStack() as stack:
        stack.callback(lambda: [job.kill() for job in jobs.values()])
        hosts = stack.enter_context(Hosts(folder / "hosts", name="popdie", subnet=36))
        for name in ADAPTERS:
            start(name, "-np", "2", f"--mpirun={found}", f"--host={','.join(hosts.addresses)}",
                  f"--mpi-global-args={hosts.mpirun_options(found)}", "--host-timeout=3",
                  "--max-restarts=3", "--min-instances=1", "--grace-period=1")  # fmt: skip
        wait_for("waits.0")
        hosts.kill(1)
        wait_for("waits.1")  # on the first host alone
        hosts.start_again(1)
        for name in ADAPTERS:
            (folder / name / "returned").touch()
        wait_for("waits.2")
        hosts.kill(1)
        for name in ADAPTERS:
            code = jobs[name].wait(timeout=120)
            log = (folder / f"{name}.log").read_text()
            assert code == 0, log
            assert log.count("1 of 2 instances have all 4 replicas") == 2, log
        results = {}
        for name in ADAPTERS:
            start(f"whole {name}", "-np", "2")
            (folder / f"whole {name}" / "undisturbed").touch()
        for name in ADAPTERS:
            whole = f"whole {name}"
            assert jobs[whole].wait(timeout=120) == 0, (folder / f"{whole}.log").read_text()
            results[name] = [dict(np.load(folder / one / "result.npz")) for one in (whole, name)]
    return results


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_host_that_dies_twice_changes_nothing(adapter, trained_while_a_host_died_twice):
    whole, disturbed = trained_while_a_host_died_twice[adapter]
    assert whole.keys() == disturbed.keys()
    for name, expected in whole.items():
        tolerance = ADAPTERS[adapter]
        np.testing.assert_allclose(disturbed[name], expected, rtol=tolerance, atol=tolerance)
