"""A job that loses a host goes on with the same replicas, and takes the host again later."""

import json
import subprocess
import sys
import time

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
        assert f"going on without {second}: 1 of 2 instances have all 5 replicas" in output
        assert sorted((tmp_path / "starts").read_text().splitlines()) == [
            "0 0/2 0+3", "0 1/2 3+2", "1 0/1 0+5", "2 0/2 0+3", "2 1/2 3+2",
        ]  # fmt: skip
        told = json.loads(result.read_text())
        assert (told["success"], told["restarts"], len(told["instances"])) == (True, 2, 2)
