"""Each row of the fault matrix on two hosts."""

from contextlib import ExitStack

import pytest

from tests.conftest import OPEN_MPI, generations, mpirun_of
from tests.distributed.endings import Job
from tests.distributed.faults import check, rows
from tests.distributed.test_faults import clock
from tests.hosts.network import Hosts, Setup, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"FAULTS ARE NOT TESTED: {missing()}")

ROWS = rows(2)


LASTING = ("host", "link", "disk", "clock")
"""Places whose faults outlast the job, and have hosts of their own."""


def two_hosts(folder, **more):
    """Two hosts with shared memory and a small disk of their own."""
    (folder / "logs").mkdir()
    before = f"mount -t tmpfs tmpfs /dev/shm && mount -t tmpfs -o size=64k tmpfs {folder}/logs"
    setups = dict.fromkeys(range(2), Setup(before=before))
    return Hosts(folder, setups=setups, **more)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hosts")
    with two_hosts(folder, name="popbad", subnet=39) as hosts:
        yield hosts


@pytest.mark.parametrize("generation", generations())
@pytest.mark.parametrize("fault", ROWS, ids=[fault.name for fault in ROWS])
def test_a_fault_on_two_hosts(fault, generation, hosts, tmp_path):
    with ExitStack() as stack:
        if fault.place in LASTING:
            hosts = stack.enter_context(two_hosts(tmp_path, name="poplast", subnet=40))
        folder = hosts.folder
        mpirun = mpirun_of(generation)
        job = Job(
            [
                f"--mpirun={mpirun}",
                f"--host={','.join(hosts.addresses)}",
                f"--mpi-global-args={hosts.mpirun_options(mpirun)}",
                *fault.options_in(folder),
            ],
            folder,
            *fault.words,
            program=fault.program,
            hosts=hosts,
            terminal=fault.terminal,
            environment=clock(folder) if fault.place == "clock" else {},
        )
        stack.callback(job.clean_up)
        check(fault, job, OPEN_MPI[generation])
