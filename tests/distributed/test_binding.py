"""What instances see of their host: processors and thread counts, over both generations."""

import os
import sys

import pytest

from tests.distributed.jobs import LAUNCHER, run_command

CODE = "import os; print(sorted(os.sched_getaffinity(0)), os.environ.get('OMP_NUM_THREADS'))"
PROGRAM = [sys.executable, "-c", CODE]
ALL = sorted(os.sched_getaffinity(0))


@pytest.fixture
def launcher(mpirun):
    return [*LAUNCHER, f"--mpirun={mpirun}"]


def test_instances_stay_where_the_launcher_was_confined_to(launcher):
    confined = ["taskset", "-c", str(ALL[-1])]
    status, output = run_command(
        [*confined, *launcher, "-np", "2", *PROGRAM], env={"OMP_NUM_THREADS": None}
    )
    assert (status, output) == (0, f"[{ALL[-1]}] 1\n" * 2)


def test_threads_are_shared_unless_the_user_has_decided(launcher):
    command = [*launcher, "-np", str(2 * len(ALL)), *PROGRAM]
    status, output = run_command(command, env={"OMP_NUM_THREADS": None})
    assert status == 0
    assert {line.split()[-1] for line in output.splitlines()} == {"1"}
    status, output = run_command(command, env={"OMP_NUM_THREADS": "5"})
    assert {line.split()[-1] for line in output.splitlines()} == {"5"}


def test_one_instance_is_left_alone(launcher):
    status, output = run_command([*launcher, *PROGRAM], env={"OMP_NUM_THREADS": None})
    assert (status, output.split()[-1]) == (0, "None")
    status, output = run_command(
        [*launcher, "--numa-aware=yes", "--process-placement=spreadnuma", *PROGRAM]
    )
    assert (status, output) == (0, f"{ALL} 1\n")  # the tests themselves set a thread count


@pytest.mark.skipif(len(ALL) == 1, reason="one processor is nothing to bind to")
def test_a_binding_of_the_users_own_is_kept(launcher):
    status, output = run_command(
        [*launcher, "--mpi-global-args=--bind-to core", "-np", "2", *PROGRAM]
    )
    assert status == 0, output
    assert len({line.partition("]")[0] for line in output.splitlines()}) == 2
