"""Larger TensorFlow programs, with the published imports: they train what one process trains."""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from tests.distributed.jobs import run_command
from tests.programs.launching import LARGER, run, variables

FOUR_REPLICAS = ("--num-instances=2", "--num-replicas=4")

# Plain TensorFlow on the global batch: the network of each replica's part, and one mean.
RESNET = """
import json, sys
import numpy as np
import tensorflow.compat.v1 as tf
import tensorflow_resnet as program

replicas, file = int(sys.argv[1]), sys.argv[2]
images, labels = program.samples(replicas)
x, y = tf.placeholder(tf.float32, images.shape[1:]), tf.placeholder(tf.int32, labels.shape[1:])
parts = [program.loss_of(x[i], y[i]) for i in range(replicas)]
loss, rate = tf.add_n(parts) / replicas, tf.placeholder(tf.float32, [])
train = tf.train.MomentumOptimizer(rate, momentum=0.9).minimize(loss)
held = {v.handle.op.name: v for v in tf.global_variables()}
moves = {}
for one in tf.get_default_graph().get_operations():
    if one.type == "AssignSubVariableOp" and "moving" in one.inputs[0].op.name:
        moves.setdefault(one.inputs[0].op.name, []).append(one.inputs[1])
assert moves and all(len(deltas) == replicas for deltas in moves.values())
losses = []
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for number, (own_x, own_y) in enumerate(zip(images, labels)):
        fed = {x: own_x, y: own_y, rate: program.RATES[number // program.ITERATIONS]}
        found, deltas, _ = session.run([loss, moves, train], fed)
        losses.append(float(found))
        for name, each in deltas.items():  # what a reader of all replicas' averages sees
            held[name].load(held[name].eval(session) - np.mean(each, axis=0), session)
    values = session.run({v.name: v for v in tf.global_variables()})
np.savez(file, **values)
print(json.dumps(losses))
"""

PIPELINE = """
import json, sys
import numpy as np
import tensorflow.compat.v1 as tf
import tensorflow_pipeline as program

replicas, file = int(sys.argv[1]), sys.argv[2]
images, labels = (
    one.reshape(program.UPDATES, -1, *one.shape[3:]) for one in program.samples(replicas)
)
program.BATCH = images.shape[1]
x, y = tf.placeholder(tf.float32, images.shape[1:]), tf.placeholder(tf.int32, labels.shape[1:])
loss = program.last_stage(*program.second_stage(*program.first_stage(x, y)))
train = tf.train.GradientDescentOptimizer(program.RATE).minimize(loss)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    losses = [float(session.run([loss, train], {x: a, y: b})[0]) for a, b in zip(images, labels)]
    np.savez(file, **session.run({v.name: v for v in tf.trainable_variables()}))
print(json.dumps(losses))
"""

# Plain TensorFlow on the global batch.
SHARDS = """
import json, sys
import numpy as np
import tensorflow.compat.v1 as tf
import tensorflow_shards as program

replicas, file = int(sys.argv[1]), sys.argv[2]
points, distances = program.samples(replicas)
x, y = (tf.placeholder(tf.float32, one.shape[1:]) for one in (points, distances))
hidden = tf.tanh(program.layer("first", tf.reshape(x, [-1, 3]), 8))
errors = tf.reshape(program.layer("second", hidden, 1), y.shape) - y
losses = tf.reduce_mean(tf.square(errors), axis=[1, 2])
step = tf.train.GradientDescentOptimizer(program.RATE).minimize(tf.reduce_mean(losses))
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    found = [session.run([losses, step], {x: a, y: b})[0] for a, b in zip(points, distances)]
    np.savez(file, **session.run({v.name: v for v in tf.trainable_variables()}))
print(json.dumps(np.asarray(found).tolist()))
"""


def plain(text, replicas, file):
    """The losses of a program in plain TensorFlow, which leaves its weights in a file."""
    command = [sys.executable, "-m", "popdist.sdk", "-c", text, replicas, file]
    code, output = run_command(command, env=variables(None, {"PYTHONPATH": str(LARGER)}))
    assert code == 0, output
    return json.loads(output.strip().splitlines()[-1])


def assert_equal_weights(file, reference):
    with np.load(file) as found, np.load(reference) as expected:
        assert sorted(found) == sorted(expected)
        for name in expected:
            np.testing.assert_allclose(found[name], expected[name], rtol=2e-4, atol=2e-5)


def test_a_compiled_loop_with_queues(tmp_path):
    program = LARGER / "tensorflow_loop.py"
    job, one = tmp_path / "job", tmp_path / "one"
    ranks, _ = run("poprun with names", program, f"--save={job}")
    (alone,), _ = run("alone with names", program, f"--save={one}", "--batch-size=32")
    assert ranks[0]["digest"] == ranks[1]["digest"]
    assert ranks[0]["own"] != ranks[1]["own"]
    assert ranks[0]["losses"] == ranks[1]["losses"]
    assert len(alone["losses"]) == 4 * 5
    np.testing.assert_allclose(ranks[0]["losses"], alone["losses"], rtol=1e-4)
    for rank in ranks:
        np.testing.assert_allclose(rank["totals"], alone["totals"], rtol=1e-4)
        sums = np.reshape(rank["losses"], (4, 5)).sum(1)
        np.testing.assert_allclose(rank["totals"], sums, rtol=1e-5)
    assert alone["losses"][-1] < alone["losses"][0] / 3
    assert_equal_weights(f"{job}.npz", f"{one}.npz")
    with np.load(f"{job}.npz") as variables:
        assert any("Momentum" in name for name in variables)
    assert (tmp_path / "job.index").is_file()


def test_keras_fits_with_many_steps_per_execution(tmp_path):
    program = LARGER / "tensorflow_keras.py"
    # Keras 3 takes no other name for weights.
    suffix = "" if version("keras").startswith("2.") else ".weights.h5"
    job, one = tmp_path / f"job{suffix}", tmp_path / f"one{suffix}"
    options = ("--num-instances=2", "--num-replicas=4")
    ranks, _ = run("poprun with names", program, f"--save={job}", options=options)
    (alone,), _ = run("alone with names", program, f"--save={one}", "--batch-size=64")
    assert ranks[0].keys() == ranks[1].keys()
    for name in ranks[0].keys() - {"rank"}:
        assert ranks[0][name] == ranks[1][name], name
    for name in ("losses", "training_accuracies", "loss", "accuracy"):
        np.testing.assert_allclose(ranks[0][name], alone[name], rtol=1e-4)
    assert alone["accuracy"] > 0.85
    assert_equal_weights(f"{job}.npz", f"{one}.npz")
    assert Path(f"{job}{'' if suffix else '.index'}").is_file()


def test_a_residual_network_with_batch_normalisation(tmp_path):
    pytest.importorskip("tensorflow_estimator")  # `tf.layers` is gone where there is Keras 3
    job, one = tmp_path / "job.npz", tmp_path / "one.npz"
    program = LARGER / "tensorflow_resnet.py"
    ranks, _ = run("poprun with names", program, f"--save={job}", options=FOUR_REPLICAS)
    losses = plain(RESNET, 4, one)
    assert ranks[0]["digest"] == ranks[1]["digest"]
    assert ranks[0]["losses"] == ranks[1]["losses"]
    np.testing.assert_allclose(ranks[0]["losses"], losses, rtol=1e-4)
    assert losses[-1] < losses[0]
    assert_equal_weights(job, one)


def test_a_pipelined_convolutional_network(tmp_path):
    job, one = tmp_path / "job.npz", tmp_path / "one.npz"
    program = LARGER / "tensorflow_pipeline.py"
    options = (*FOUR_REPLICAS, "--ipus-per-replica=4")
    ranks, _ = run("poprun with names", program, f"--save={job}", options=options)
    losses = plain(PIPELINE, 4, one)
    assert ranks[0]["digest"] == ranks[1]["digest"]
    found = np.mean([np.reshape(rank["losses"], (len(losses), -1)) for rank in ranks], axis=(0, 2))
    np.testing.assert_allclose(found, losses, rtol=1e-4)
    assert losses[-1] < losses[0]
    assert_equal_weights(job, one)


def test_layers_on_shards_and_replicas(tmp_path):
    job, one = tmp_path / "job", tmp_path / "one.npz"
    options = (*FOUR_REPLICAS, "--ipus-per-replica=2")
    program = LARGER / "tensorflow_shards.py"
    ranks, _ = run("poprun with names", program, f"--save={job}", options=options)
    losses = np.asarray(plain(SHARDS, 4, one))
    assert losses[-1].mean() < losses[0].mean()
    for way in ("named", "automatic"):
        for rank, answer in enumerate(ranks):
            own = slice(2 * rank, 2 * rank + 2)
            assert answer[way]["replica"] == [[2 * rank, 2 * rank + 1]] * len(losses)
            np.testing.assert_allclose(answer[way]["own"], losses[:, own], rtol=1e-4)
            total = np.repeat(losses.sum(axis=1)[:, np.newaxis], 2, axis=1)
            np.testing.assert_allclose(answer[way]["sum"], total, rtol=1e-4)
            assert_equal_weights(f"{job}.{way}.{rank}.npz", one)
        with np.load(f"{job}.{way}.0.npz") as first, np.load(f"{job}.{way}.1.npz") as second:
            for name in first:
                np.testing.assert_array_equal(first[name], second[name])
