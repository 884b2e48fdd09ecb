"""The doctor with its real jobs of two ranks."""

import json

from tests.distributed.jobs import LAUNCHER, run_command


def test_a_machine_that_runs_these_tests_is_well():
    code, output = run_command([*LAUNCHER, "doctor", "--json"], timeout=280)
    told = json.loads(output)
    assert (code, told["ok"]) == (0, True), output
    found = {one["topic"]: one for one in told["findings"]}
    assert "MPI" in found["horovod.torch at work"]["facts"]["built_with"]
    measured = found["allreduce of two instances"]["facts"]["measured"]
    assert [row["bytes"] for row in measured] == [4 << 10, 1 << 20, 16 << 20]
    assert all(0 < row["copy_s"] < row["allreduce_s"] for row in measured)
