"""Each row of the fault matrix on one host."""

import os
import shutil
import subprocess

import pytest

from tests.conftest import OPEN_MPI, generations, mpirun_of
from tests.distributed.endings import CLOCK, Job
from tests.distributed.faults import FAULTS, check, recorded, rows

WITHOUT_GROUPS = min(OPEN_MPI)
"""With this Open MPI jobs end as they do for a user who can make no control groups."""

SEPARATE = os.geteuid() == 0 and shutil.which("unshare") is not None
ROWS = rows(1)


@pytest.mark.parametrize("generation", generations())
@pytest.mark.parametrize("fault", ROWS, ids=[fault.name for fault in ROWS])
def test_a_fault_on_one_host(fault, generation, tmp_path):
    if fault.before and not SEPARATE:
        pytest.skip(f"{fault.name} IS NOT TESTED: a mount namespace needs root")
    environment = {}
    if fault.place == "clock":
        environment = clock(tmp_path)
    options = [f"--mpirun={mpirun_of(generation)}", *fault.options_in(tmp_path)]
    if generation == WITHOUT_GROUPS:
        options = ["--control-groups=no", *options]
    job = Job(
        options,
        tmp_path,
        *fault.words,
        program=fault.program,
        before=(fault.before.format(folder=tmp_path) or "true") if SEPARATE else None,
        terminal=fault.terminal,
        environment=environment,
    )
    try:
        check(fault, job, OPEN_MPI[generation])
    finally:
        job.clean_up()


def clock(folder):
    """The variables with which the clock goes back once the file "jump" is in the folder."""
    (folder / "clock.c").write_text(CLOCK)
    library = folder / "clock.so"
    compiler = ["cc", "-shared", "-fPIC", "-o", library, folder / "clock.c", "-ldl"]
    subprocess.run(compiler, check=True)
    return {"LD_PRELOAD": str(library), "JUMP": str(folder / "jump")}


def test_the_record_has_each_row_on_one_host_and_on_two():
    names = ("place", "what", "hosts", "open_mpi")
    found = {tuple(row[name] for name in names) for row in recorded()}
    wanted = {
        (one.place, one.what, number, version)
        for one in FAULTS
        for number in one.hosts
        for version in OPEN_MPI.values()
    }
    assert found == wanted, "make test-faults writes them"
    assert all(row["survivors"] == row["leftovers"] == 0 for row in recorded())
