"""`popdist_onnx.train` under launchers other than poprun: all processes train one model."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import popdist_onnx as popart
from tests.distributed.jobs import run_command
from tests.distributed.warm import python

BIN = Path(sys.executable).parent
LAUNCHERS = {
    "mpirun": [BIN / "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"],
    "horovodrun over gloo": [BIN / "horovodrun", "--gloo", "-np", "2", "-H", "localhost:2"],
}
ROWS = np.random.default_rng(7).normal(size=(16, 3)).astype(np.float32)
CLASSES = np.arange(16) % 2
EPOCHS, BATCH, RATE = 2, 4, 0.1


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
    weight = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=RATE)
    losses = []
    for _ in range(EPOCHS):
        parts = []
        for first in range(0, 16, 2 * BATCH):  # the global batch
            rows = slice(first, first + 2 * BATCH)
            scores = torch.from_numpy(ROWS[rows]).double() @ weight
            loss = torch.nn.functional.cross_entropy(scores, torch.from_numpy(CLASSES[rows]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            parts.append(loss.item())
        losses.append(np.mean(parts))
    first, second = (np.load(tmp_path / f"{rank}.npz") for rank in range(2))
    np.testing.assert_array_equal(first["weight"], second["weight"])
    np.testing.assert_allclose(first["weight"], weight.detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(first["losses"], losses, atol=1e-6)
