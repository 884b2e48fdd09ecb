"""Programs with the calls that the guides teach, under the commands that the guides print."""

import importlib.util
import json
import shlex

import numpy as np
import pytest
import torch

from tests.distributed.jobs import run_command
from tests.programs.launching import (
    GUIDES,
    free_ports,
    observed,
    observing,
    run,
    variables,
)

needs_estimators = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow_estimator") is None,
    reason="TensorFlow 2.16 and later have no estimators",
)

# Calculated without any of this code, for two processes with the same data.
POPART_STEP_MEANS = [-3.8163, -22.852, -27.070, -27.070]
POPART_FIRST_LOSS = -3.42796
STEPS = 20


def two_alike(folder):
    first, second = observed(folder)
    assert first["digest"] == second["digest"]
    return first, second


@pytest.mark.parametrize("launcher", ["horovodrun", "horovodrun over gloo", "mpirun"])
def test_popart_trains_to_the_computed_losses(launcher, enabled, tmp_path):
    env = observing(tmp_path, OBSERVED_SEED="42")
    run(launcher, GUIDES / "popart_horovod.py", environment=enabled, env=env)
    for rank in two_alike(tmp_path):
        losses = np.asarray(rank["losses"])
        assert losses.shape == (10, 32)
        np.testing.assert_allclose(losses[:4].mean(1), POPART_STEP_MEANS, rtol=2e-5)
        assert losses[0, 0] == pytest.approx(POPART_FIRST_LOSS, abs=1e-5)


def test_popart_has_equal_weights_where_every_rank_has_data_of_its_own(tmp_path):
    # Nothing seeds the data.
    run("poprun with names", GUIDES / "popart_horovod.py", env=observing(tmp_path))
    first, second = two_alike(tmp_path)
    assert first["losses"][0] != second["losses"][0]


@needs_estimators
def test_tensorflow_trains_over_horovod(enabled, tmp_path):
    answers = tmp_path / "answers"
    answers.mkdir()
    arguments = [f"--num-steps={STEPS}", f"--model-dir={tmp_path / 'model'}"]
    run(
        "mpirun",
        GUIDES / "tensorflow_horovod.py",
        *arguments,
        environment=enabled,
        env=observing(answers),
    )
    check_estimator(answers, tmp_path / "model")


@needs_estimators
def test_tensorflow_trains_in_two_terminals(enabled, tmp_path):
    answers = tmp_path / "answers"
    answers.mkdir()
    cluster = {"worker": [f"localhost:{port}" for port in free_ports(2)]}
    program = [GUIDES / "tensorflow_multi_worker.py", f"--num-steps={STEPS}"]
    program.append(f"--model-dir={tmp_path / 'model'}")
    terminals = [
        f"TF_CONFIG={shlex.quote(json.dumps({'cluster': cluster, 'task': task}))} "
        f'python {shlex.join(map(str, program))} & pids="$pids $!"'
        for task in ({"type": "worker", "index": index} for index in range(2))
    ]
    script = "\n".join([*terminals, "for pid in $pids; do wait $pid || exit 1; done"])
    env = variables(enabled, observing(answers))
    code, output = run_command(["bash", "-c", script], env=env)
    assert code == 0, output
    check_estimator(answers, tmp_path / "model")


def check_estimator(answers, model_folder):
    for rank in two_alike(answers):
        assert rank["steps"] == STEPS
        assert rank["last_loss"] < rank["first_loss"]
        assert any("Adam" in name for name in rank["names"])
    assert (model_folder / f"model.ckpt-{STEPS}.index").is_file()


@pytest.mark.parametrize(("instances", "replicas"), [(1, 4), (2, 4)])
def test_the_listing_of_pytorch_trains_on_all_replicas(instances, replicas):
    options = [f"--num-instances={instances}", f"--num-replicas={replicas}", "--numa-aware=yes"]
    program = GUIDES / "pytorch_popdist.py"
    ranks, output = run("poprun with names", program, options=[*options, "-v"])
    assert f"poprun decides about replicas: {replicas} in all" in output
    expected = listing_alone(instances, replicas)
    for rank in ranks:
        assert rank["weights"] == ranks[0]["weights"]
        assert rank["replicas"] == replicas // instances
    np.testing.assert_allclose(ranks[0]["weights"], expected, rtol=1e-5, atol=1e-6)


def listing_alone(instances, replicas, batch=4, epochs=3):
    """The weights that plain PyTorch makes of the same global batches."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    images = torch.randn(64, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # Each instance has a contiguous part of the data.
    parts = images.reshape(instances, -1, batch * replicas // instances, 6)
    for _ in range(epochs):
        for step in range(parts.shape[1]):
            x = parts[:, step].reshape(-1, 6)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
            optimizer.step()
    return torch.cat([value.flatten() for value in model.state_dict().values()]).numpy()
