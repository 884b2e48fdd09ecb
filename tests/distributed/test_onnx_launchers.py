"""The published Horovod program under every launcher: equal weights, and the computed losses."""

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.distributed.jobs import LAUNCHER, ROOT, run_command

PROGRAM = Path(__file__).with_name("onnx_program.py")
BIN = Path(sys.executable).parent

COMMANDS = {
    "poprun": [*LAUNCHER, "--num-instances", "2", "--num-replicas", "2"],
    "mpirun": [BIN / "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"],
    "horovodrun": [BIN / "horovodrun", "-np", "2", "-H", "localhost:2"],
    "horovodrun over gloo": [BIN / "horovodrun", "--gloo", "-np", "2", "-H", "localhost:2"],
}

# Calculated without any of this code, for two processes with the same data.
STEP_MEANS = [-3.8163, -22.852, -27.070, -27.070]


def run(launcher, folder, data_are):
    command = [*COMMANDS[launcher], sys.executable, PROGRAM, folder, data_are]
    environment = {
        "PYTHONPATH": str(ROOT),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin",
    }
    code, output = run_command(command, env=environment)
    assert code == 0, output
    return [dict(np.load(Path(folder) / f"{rank}.npz")) for rank in range(2)]


@pytest.mark.parametrize("launcher", COMMANDS)
def test_losses_are_the_computed_ones_and_weights_are_equal(launcher, tmp_path):
    first, second = run(launcher, tmp_path, "same")
    assert first["size"] == second["size"] == 2
    np.testing.assert_allclose(first["losses"].mean(1), STEP_MEANS, rtol=2e-5)
    assert first["losses"][0, 0] == pytest.approx(-3.42796, abs=1e-5)
    assert (first["losses"][0] == np.float32(-np.log(np.float32(1e-7)))).sum() == 16
    for name in ("weight", "bias", "losses"):
        np.testing.assert_array_equal(first[name], second[name])
    # One process's largest weight was calculated as 1.52e10; two of them sum their gradients.
    assert np.abs(first["weight"]).max() == pytest.approx(2 * 1.52e10, rel=0.01)


def test_own_data_give_own_losses_and_still_equal_weights(tmp_path):
    first, second = run("poprun", tmp_path, "own")
    assert not np.array_equal(first["losses"], second["losses"])
    np.testing.assert_array_equal(first["weight"], second["weight"])
    np.testing.assert_array_equal(first["bias"], second["bias"])
