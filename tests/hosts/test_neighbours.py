"""Instances on several hosts meet where poprun says, and large jobs reach them too."""

import os
import sys

import pytest

from popdist.poprun.machines.find_mpirun import locate_mpirun
from tests.distributed.jobs import LAUNCHER, run_command
from tests.hosts.network import Hosts, missing

pytestmark = pytest.mark.skipif(
    bool(missing()), reason=f"SEVERAL HOSTS ARE NOT TESTED: {missing()}"
)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    with Hosts(tmp_path_factory.mktemp("hosts"), name="popnear", subnet=36) as hosts:
        yield hosts


def options(hosts, mpirun):
    return [
        f"--mpirun={mpirun}",
        f"--host={','.join(hosts.addresses)}",
        f"--mpi-global-args={hosts.mpirun_options(mpirun)}",
    ]


def test_torch_meets_at_the_first_host(hosts):
    code = (
        "import os, socket, torch.distributed as dist\n"
        "from datetime import timedelta\n"
        "store = dist.TCPStore(os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']),\n"
        "    int(os.environ['WORLD_SIZE']), os.environ['RANK'] == '0', timedelta(seconds=60))\n"
        "store.set(os.environ['RANK'], socket.gethostname())\n"
        "print(os.environ['NODE_RANK'], os.environ['LOCAL_RANK'],\n"
        "    *(store.get(str(i)).decode() for i in range(4)))\n"
        "store.add('done', 1)\n"
        "while os.environ['RANK'] == '0' and store.add('done', 0) < 4: pass"
    )
    status, output = run_command(
        [*LAUNCHER, *options(hosts, locate_mpirun(os.environ).path), "-np", "4",
         sys.executable, "-c", code],
        env={"MASTER_ADDR": None, "MASTER_PORT": None},
    )  # fmt: skip
    assert status == 0, output
    names = "popnear1 popnear1 popnear2 popnear2"
    lines = [line for line in output.splitlines() if names in line]  # others are warnings
    assert sorted(lines) == [f"{node} {local} {names}" for node in (0, 1) for local in (0, 1)]


def test_a_file_of_contexts_reaches_other_hosts(hosts, mpirun):
    status, output = run_command(
        ["sh", "-c", 'ulimit -s 512; exec "$@"', "sh",
         *LAUNCHER, *options(hosts, mpirun), "-v", "-np", "40", "-x", "VALUE=a # b",
         "sh", "-c", 'echo $(hostname) $RANK "$VALUE" "$1"', "sh", ": '"],
    )  # fmt: skip
    assert status == 0, output
    assert "'--app'" in output
    for index in range(40):
        assert f"popnear{1 + index // 20} {index} a # b : '\n" in output
