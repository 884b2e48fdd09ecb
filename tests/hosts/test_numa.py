"""NUMA nodes that differ from host to host: each is bound by what its own /sys says."""

import os
import sys

import pytest

from popdist.poprun.machines.find_mpirun import locate_mpirun
from popdist.poprun.protocol.guard_argv import format_list
from tests.distributed.jobs import LAUNCHER, run_command
from tests.hosts.network import Hosts, Setup, missing

CPUS = sorted(os.sched_getaffinity(0))
MPIRUN = locate_mpirun({}, None).path

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=f"SEVERAL HOSTS ARE NOT TESTED: {missing()}"),
    pytest.mark.skipif(len(CPUS) == 1, reason="ONE PROCESSOR IS NOTHING TO BIND TO"),
]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Two hosts; on the first, the kernel seems to tell of two nodes."""
    folder = tmp_path_factory.mktemp("numa")
    half = len(CPUS) // 2
    for path, text in (
        ("online", "0-1"),
        ("has_memory", "0"),  # there really is one only
        ("node0/cpulist", format_list(CPUS[:half])),
        ("node1/cpulist", format_list(CPUS[half:])),
    ):
        file = folder / "node" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    setups = {0: Setup(before=f"mount --bind {folder}/node /sys/devices/system/node")}
    with Hosts(folder, 2, name="popnuma", subnet=35, setups=setups) as hosts:
        yield hosts


def test_every_host_is_bound_by_its_own_nodes_and_the_table_shows_it(hosts):
    code = (
        "import os, popdist\n"
        "print(popdist.getInstanceIndex(), *sorted(os.sched_getaffinity(0)), "
        "os.environ['OMP_NUM_THREADS'])"
    )
    status, output = run_command(
        [*LAUNCHER, f"--mpirun={MPIRUN}", f"--host={','.join(hosts.addresses)}", "-np", "4",
         f"--mpi-global-args={hosts.mpirun_options(MPIRUN)}", "--num-replicas=8",
         "--print-topology=yes", sys.executable, "-c", code],
        env={"OMP_NUM_THREADS": None},
    )  # fmt: skip
    assert status == 0, output
    half = len(CPUS) // 2
    bound = [CPUS[:half], CPUS[half:], CPUS, CPUS]
    threads = [half, len(CPUS) - half, half, half]
    expected = [" ".join(map(str, [index, *bound[index], threads[index]])) for index in range(4)]
    lines = output.splitlines()
    assert sorted(line for line in lines if line[:1].isdigit()) == expected
    assert "| NUMA      |   0   |   1   |       |       |" in lines
