"""Programs of other launchers run unchanged: real DistributedDataParallel, real MWMS."""

import os
import sys

import numpy as np
import pytest

from tests.distributed.jobs import LAUNCHER, run_command, run_job

STEPS, PER_RANK, FEATURES, RATE = 5, 6, 4, 0.1


def data():
    generator = np.random.default_rng(7)
    x = generator.normal(size=(STEPS, 2 * PER_RANK, FEATURES)).astype(np.float32)
    y = generator.normal(size=(STEPS, 2 * PER_RANK, 1)).astype(np.float32)
    return x, y


def reference():
    """One process, the global batch, by hand."""
    weight, bias = np.full((1, FEATURES), 0.5), np.zeros(1)
    for x, y in zip(*data(), strict=True):
        slope = 2 * (x @ weight.T + bias - y) / len(x)
        weight, bias = weight - RATE * slope.T @ x, bias - RATE * slope.sum(0)
    return weight, bias


def train_with_ddp():
    import torch
    from torch.distributed import destroy_process_group, init_process_group
    from torch.nn.parallel import DistributedDataParallel

    init_process_group("gloo")  # from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model = torch.nn.Linear(FEATURES, 1)
    torch.nn.init.constant_(model.weight, 0.5)
    torch.nn.init.zeros_(model.bias)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for x, y in zip(*data(), strict=True):
        mine = slice(rank * PER_RANK, (rank + 1) * PER_RANK)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(torch.tensor(x[mine])), torch.tensor(y[mine]))
        loss.backward()
        optimizer.step()
    torch.distributed.barrier()
    destroy_process_group()
    module = model.module
    return {
        "rank": rank,
        "world": world,
        "local": int(os.environ["LOCAL_RANK"]),
        "weight": module.weight.detach().numpy(),
        "bias": module.bias.detach().numpy(),
    }


def train_with_mwms():
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # from TF_CONFIG
    with strategy.scope():
        weight = tf.Variable(np.full((FEATURES, 1), 0.5, np.float32))
        bias = tf.Variable(np.zeros(1, np.float32))
        optimizer = tf.keras.optimizers.SGD(RATE)
        optimizer.build([weight, bias])

    @tf.function
    def step(x, y):
        def replica(x, y):
            with tf.GradientTape() as tape:
                error = tf.reduce_sum((x @ weight + bias - y) ** 2) / (2 * PER_RANK)
            slopes = tape.gradient(error, [weight, bias])
            optimizer.apply_gradients(zip(slopes, [weight, bias], strict=True))

        strategy.run(replica, args=(x, y))

    index = strategy.cluster_resolver.task_id
    for x, y in zip(*data(), strict=True):
        mine = slice(index * PER_RANK, (index + 1) * PER_RANK)
        step(tf.constant(x[mine]), tf.constant(y[mine]))
    return {
        "rank": index,
        "world": strategy.num_replicas_in_sync,
        "weight": weight.numpy().T,
        "bias": bias.numpy(),
    }


def check(answers):
    weight, bias = reference()
    for index, answer in enumerate(answers):
        assert (answer["rank"], answer["world"]) == (index, 2)
        np.testing.assert_allclose(answer["weight"], weight, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(answer["bias"], bias, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(answer["weight"], answers[0]["weight"])


def test_distributed_data_parallel(mpirun):
    answers = run_job(train_with_ddp, options=[f"--mpirun={mpirun}"])
    check(answers)
    assert [answer["local"] for answer in answers] == [0, 1]


def test_multi_worker_mirrored_strategy():
    env = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    check(
        run_job(
            train_with_mwms,
            framework="tensorflow",
            options=["--tf-config=yes"],
            env=env,
            timeout=240,
        )
    )


@pytest.mark.parametrize(
    ("env", "options", "expected"),
    [
        ({"MASTER_PORT": "12345", "RANK": "9"}, (), "0 2 0 2 0 127.0.0.1 12345"),
        ({}, ("-x", "MASTER_ADDR=here", "-x", "WORLD_SIZE=7"), "0 7 0 2 0 here"),
    ],
)
def test_what_the_user_has_set(env, options, expected):
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK MASTER_ADDR MASTER_PORT"
    code = f"import os; print(*(os.environ[name] for name in {names.split()!r}))"
    status, output = run_command(
        [
            *LAUNCHER,
            "-np",
            "2",
            "--only-output-from-instance=0",
            *options,
            sys.executable,
            "-c",
            code,
        ],
        env={"MASTER_ADDR": None, "MASTER_PORT": None, **env},
    )
    assert status == 0, output
    assert output.startswith(expected)


def test_values_of_variables_reach_programs_and_nothing_else():
    # A library that does not exist: mpirun and guards would complain about it, as the program does.
    status, output = run_command(
        [*LAUNCHER, "-np", "2", "-x", "LD_PRELOAD=/no/such/library.so", "true"]
    )
    assert status == 0
    assert output.count("library.so") == 2
