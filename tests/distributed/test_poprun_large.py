"""Jobs whose description is too long for a command line."""

from tests.distributed.jobs import LAUNCHER, run_command

INSTANCES = 48


def test_many_instances_are_described_in_a_file(mpirun, tmp_path):
    # A small stack makes the kernel grant little room for arguments, so that few instances fill it.
    program = 'echo $RANK $WORLD_SIZE "$1" "$ALL" "$ONE" "$POPDIST_EXECUTABLE_CACHE_PATH"'
    words = [
        "sh", "-c", 'ulimit -s 512; exec "$@"', "sh",
        *LAUNCHER, f"--mpirun={mpirun}", "-v", f"--num-instances={INSTANCES}",
        "-x", 'ALL=for # "all"', "--instance-mpi-local-args=3:-x ONE=for3",
        f"--executable-cache-path={tmp_path / 'my dir'}",
        "sh", "-c", program, "sh", "y  z : # \"'",
    ]  # fmt: skip
    status, output = run_command(words)
    assert status == 0, output
    assert "'--app'" in output
    assert "--instance" not in output
    lines = [line for line in output.splitlines() if " POPRUN " not in line]
    common = f'y  z : # "\' for # "all" {{}} {tmp_path}/my dir'
    expected = [
        f"{i} {INSTANCES} " + common.format("for3" if i == 3 else "") for i in range(INSTANCES)
    ]
    assert sorted(lines) == sorted(expected)


def test_sixty_four_instances_that_do_nothing(mpirun):
    assert run_command([*LAUNCHER, f"--mpirun={mpirun}", "-np", "64", "true"]) == (0, "")
