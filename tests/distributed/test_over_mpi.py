"""Jobs without a framework that Horovod could be built for: ONNX training over MPI alone.

The programs hide PyTorch, TensorFlow and Horovod from their Python, and import nothing that needs
them; expected values are PyTorch's, in float64, and numpy's.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.distributed.jobs import LAUNCHER, run_command

BIN = Path(sys.executable).parent
MPIRUN = [BIN / "mpirun", "--allow-run-as-root", "--oversubscribe"]
HIDDEN = ["torch", "tensorflow", "horovod"]
ROWS = np.random.default_rng(7).normal(size=(24, 3)).astype(np.float32)
CLASSES = np.arange(24) % 2
TARGETS = np.random.default_rng(9).normal(size=(24, 2)).astype(np.float32)
WEIGHTS = np.random.default_rng(8).normal(size=(3, 2)).astype(np.float32)
EPOCHS, GLOBAL_BATCH, RATE = 2, 12, 0.1


def run(code, *, launcher=LAUNCHER, instances=2, status=0):
    """Runs code in each instance of a job, where none of the hidden packages can be imported."""
    hide = f"import sys\nsys.modules.update(dict.fromkeys({HIDDEN}))\n"
    program = [sys.executable, "-c", f"{hide}from tests.distributed.test_over_mpi import *\n{code}"]
    found, output = run_command([*launcher, "-np", str(instances), *program])
    assert found == status, output
    return output


def trained(folder, loss=None):
    import popdist_onnx as popart
    from popdist import backend

    size = backend.launch().size
    batch = GLOBAL_BATCH // size
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [batch, 3]), "x")
    w = builder.addInitializedInputTensor(WEIGHTS, "w")
    builder.addOutputTensor(builder.aiOnnx.matmul([x, w]))
    trainer = popart.Trainer(
        builder.getModelProto(), loss=loss, optimizer="adam", learning_rate=RATE, batch_size=batch
    )
    losses = trainer.fit(ROWS, TARGETS if loss else CLASSES, epochs=EPOCHS, shuffle=False)
    (weight,) = trainer.weights.values()
    np.savez(Path(folder) / str(backend.launch().rank), weight=weight, losses=losses)


def expected(loss=None):
    if loss:
        return by_torch(ROWS, TARGETS, WEIGHTS, GLOBAL_BATCH, "Adam", "mse_loss")
    return by_torch(ROWS, CLASSES, WEIGHTS, GLOBAL_BATCH, "Adam", "cross_entropy")


def by_torch(rows, wanted, weights, global_batch, optimizer, loss):
    """The weights and the mean losses of the epochs of one process, in float64."""
    import torch

    weight = torch.from_numpy(weights).double().requires_grad_()
    updates = getattr(torch.optim, optimizer)([weight], lr=RATE)
    losses = []
    for _ in range(EPOCHS):
        parts = []
        for first in range(0, len(rows), global_batch):
            part = slice(first, first + global_batch)
            scores = torch.from_numpy(rows[part]).double() @ weight
            found = getattr(torch.nn.functional, loss)(scores, torch.from_numpy(wanted[part]))
            updates.zero_grad()
            found.backward()
            updates.step()
            parts.append(found.item())
        losses.append(np.mean(parts))
    return weight.detach().numpy(), losses


# As if these few numbers were many: weights stay in a file then, where they are mapped.
LARGE = "from popdist_onnx.graph import large_files as f\nf.MAPPED_FROM, f._ALWAYS_READ = 1, 0\n"


@pytest.mark.parametrize(
    ("launcher", "instances", "before", "loss"),
    [
        (LAUNCHER, 2, "", None),
        (LAUNCHER, 3, "", "mse"),
        (MPIRUN, 2, "", None),
        (LAUNCHER, 2, LARGE, "mse"),
    ],
    ids=["poprun", "three", "mpirun", "large"],
)
def test_instances_train_together_as_one_process(launcher, instances, before, loss, tmp_path):
    code = f"{before}trained({str(tmp_path)!r}, {loss!r})"
    run(code, launcher=launcher, instances=instances)
    weight, losses = expected(loss)
    found = [np.load(tmp_path / f"{rank}.npz") for rank in range(instances)]
    for one in found:
        np.testing.assert_array_equal(one["weight"], found[0]["weight"])
    np.testing.assert_allclose(found[0]["weight"], weight, atol=1e-6)
    np.testing.assert_allclose(found[0]["losses"], losses, atol=1e-6)


def collectives(folder):
    import ml_dtypes

    import popdist_onnx.horovod as hvd

    hvd.init()
    rank = hvd.rank()
    found = {"place": [rank, hvd.size(), hvd.local_rank(), hvd.local_size()]}
    for name in ("float32", "float64", "float16", "int32", "int64", "bfloat16"):
        dtype = ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)
        mine = (np.arange(6).reshape(2, 3) + 10 * rank).astype(dtype)
        found |= {
            f"sum {name}": hvd.allreduce(mine, op=hvd.Sum),
            f"mean {name}": hvd.allreduce(mine),
            f"from 1 {name}": hvd.broadcast(mine, 1),
            f"all {name}": hvd.allgather(mine[: rank + 1]),
            f"number {name}": hvd.allreduce(mine[0, 1], op=hvd.Sum),
        }
        assert all(found[key].dtype == dtype for key in found if key.endswith(f" {name}"))
    found = {key: np.asarray(value).astype(np.float64) for key, value in found.items()}
    np.savez(Path(folder) / str(rank), **found)


def test_collectives_move_and_sum_arrays_of_every_type(tmp_path):
    run(f"collectives({str(tmp_path)!r})")
    parts = [np.arange(6.0).reshape(2, 3) + 10 * rank for rank in range(2)]
    wanted = {
        "sum": parts[0] + parts[1],
        "mean": (parts[0] + parts[1]) / 2,
        "from 1": parts[1],
        "all": np.concatenate([parts[0][:1], parts[1]]),
        "number": np.asarray(parts[0][0, 1] + parts[1][0, 1]),
    }
    for rank in range(2):
        found = np.load(tmp_path / f"{rank}.npz")
        assert found["place"].tolist() == [rank, 2, rank, 2]
        for key in set(found) - {"place"}:
            np.testing.assert_array_equal(found[key], wanted[key.rpartition(" ")[0]], key)


def test_the_published_functions_wait_for_all_and_for_some():
    code = (
        "import popdist, time\n"
        "popdist.init()\n"
        "index = popdist.getInstanceIndex()\n"
        "def some():\n"
        "    popdist.synchronize()\n"
        "    return 10 * index\n"
        "print('got', popdist.execute_on_instances({0, 2}, some))\n"
        "popdist.synchronize()\n"
    )
    output = run(code, instances=3)
    assert sorted(line for line in output.splitlines() if line.startswith("got")) == [
        "got 0", "got 20", "got None"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            "pass",
            "instance 0: allreduce of popdist_onnx.allreduce.b, float32[1]; instance 1: ended",
        ),
        (
            "hvd.allreduce(np.ones(2, np.float32), name='b')",
            "float32[1]; instance 1: allreduce of popdist_onnx.allreduce.b, float32[2]",
        ),
        (
            "hvd.broadcast(np.ones(1, np.float32))",
            "instance 1: broadcast from 0 of popdist_onnx.broadcast.array, float32[1]",
        ),
    ],
)
def test_instances_that_do_different_things_are_told_so(other, said):
    code = (
        "import popdist_onnx.horovod as hvd\n"
        "hvd.init()\n"
        "hvd.allreduce(np.ones(1, np.float32), name='a')\n"
        f"if hvd.rank() == 1: {other}\n"
        "else: hvd.allreduce(np.ones(1, np.float32), name='b')"
    )
    assert said in run(code, status=1)


def test_an_instance_that_fails_ends_the_job():
    code = (
        "import popdist_onnx.horovod as hvd\n"
        "hvd.init()\n"
        "if hvd.rank() == 1: raise ValueError('the reason')\n"
        "hvd.allreduce(np.ones(1, np.float32))"
    )
    output = run(code, status=1)
    assert "poprun: instance 1 on localhost (rank 1" in output
    assert "ValueError: the reason" in output


def test_a_process_that_is_alone_needs_no_mpi():
    code = (
        "import popdist_onnx.horovod as hvd\n"
        "hvd.init()\n"
        "mine = np.arange(3.0)\n"
        "assert (hvd.rank(), hvd.size(), hvd.allreduce(mine).tolist()) == (0, 1, mine.tolist())\n"
        "for one in (hvd.broadcast(mine), hvd.allgather(mine)):\n"
        "    assert one.tolist() == mine.tolist()\n"
        "assert 'mpi4py.MPI' not in sys.modules"
    )
    run(code, instances=1)
