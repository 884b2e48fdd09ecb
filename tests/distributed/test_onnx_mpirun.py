"""`popdist_onnx.train` under launchers other than poprun: all processes train one model."""

import sys
from pathlib import Path

import numpy as np
import pytest

import popdist_onnx as popart
from tests.distributed.jobs import run_command
from tests.distributed.test_over_mpi import EPOCHS, RATE, by_torch
from tests.distributed.warm import python

BIN = Path(sys.executable).parent
LAUNCHERS = {
    "mpirun": [BIN / "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"],
    "horovodrun over gloo": [BIN / "horovodrun", "--gloo", "-np", "2", "-H", "localhost:2"],
}
ROWS = np.random.default_rng(7).normal(size=(16, 3)).astype(np.float32)
CLASSES = np.arange(16) % 2
BATCH = 4


def trained(folder):
    from popdist import backend

    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [BATCH, 3]), "x")
    w = builder.addInitializedInputTensor(np.zeros([3, 2], np.float32), "w")
    builder.addOutputTensor(builder.aiOnnx.matmul([x, w]))
    trainer = popart.Trainer(
        builder.getModelProto(), optimizer="sgd", learning_rate=RATE, batch_size=BATCH
    )
    losses = trainer.fit(ROWS, CLASSES, epochs=EPOCHS, shuffle=False)
    (weight,) = trainer.weights.values()
    np.savez(Path(folder) / str(backend.launch().rank), weight=weight, losses=losses)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_processes_train_together_on_their_parts_of_each_batch(launcher, tmp_path):
    program = f"from tests.distributed.test_onnx_mpirun import trained; trained({str(tmp_path)!r})"
    command = [*LAUNCHERS[launcher], *python("torch"), "-c", program]
    code, output = run_command(command, env={"PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin"})
    assert code == 0, output
    first_weight = np.zeros((3, 2), np.float32)
    weight, losses = by_torch(ROWS, CLASSES, first_weight, 2 * BATCH, "SGD", "cross_entropy")
    first, second = (np.load(tmp_path / f"{rank}.npz") for rank in range(2))
    np.testing.assert_array_equal(first["weight"], second["weight"])
    np.testing.assert_allclose(first["weight"], weight, atol=1e-6)
    np.testing.assert_allclose(first["losses"], losses, atol=1e-6)
