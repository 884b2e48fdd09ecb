"""Larger TensorFlow programs, with the published imports: they train what one process trains.

A job of 2 instances runs the programs one after the other, each with 1 and 2 replicas in an
instance (with ``make test-all`` also 4). Expectations are those of plain TensorFlow in one process,
on the global batch.
"""

import contextlib
import io
import json
import runpy
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.distributed.jobs import EXHAUSTIVE, run_job
from tests.programs.launching import LARGER

LOCAL_REPLICAS = (1, 2, *[4] * EXHAUSTIVE)
GLOBAL_BATCH = {"loop": 32, "keras": 64}
# Keras 3 takes no other name for weights; `tf.layers` is gone where there is Keras 3.
SUFFIX = "" if version("keras").startswith("2.") else ".weights.h5"
ESTIMATORS = find_spec("tensorflow_estimator") is not None


def run_programs(folder):
    """The last line of each program; the weights are in files."""
    import tensorflow.compat.v1 as tf

    import popdist
    from popdist.sdk import finder

    finder.install()
    total = popdist.getNumTotalReplicas()
    answers = {}
    names = ["keras", "loop", "pipeline", *["resnet"] * ESTIMATORS, *["shards"] * (total == 4)]
    for name in names:  # first that of TensorFlow 2
        save = f"{folder}/{name}{SUFFIX if name == 'keras' else ''}"
        options = [f"--save={save}{'.npz' if name in ('pipeline', 'resnet') else ''}"]
        if name in GLOBAL_BATCH:
            options.append(f"--batch-size={GLOBAL_BATCH[name] // total}")
        sys.argv = [f"tensorflow_{name}.py", *options]
        tf.reset_default_graph()
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            runpy.run_path(str(LARGER / sys.argv[0]), run_name="__main__")
        answers[name] = json.loads(said.getvalue().strip().splitlines()[-1])
    return answers


def run_plainly(folder):
    """The losses of plain TensorFlow, whose weights are in files."""
    import tensorflow.compat.v1 as tf

    from popdist.sdk import finder

    finder.install()
    sys.path.insert(0, str(LARGER))
    answers = {"keras": plain_keras(folder)}
    tf.disable_v2_behavior()
    answers |= {"loop": plain_loop(folder), "pipeline": plain_pipeline(folder)}
    answers["shards"] = plain_shards(folder)
    if ESTIMATORS:
        counts = [2 * local for local in LOCAL_REPLICAS]
        answers["resnet"] = {count: plain_resnet(folder, count) for count in counts}
    return answers


def plain_keras(folder):
    import tensorflow as tf
    import tensorflow_keras as program
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    images = (digits.images[order] / 16).astype(np.float32)[..., np.newaxis]
    labels = digits.target[order].astype(np.int32)
    split, end = program.TRAINING_DIGITS, program.TRAINING_DIGITS + program.TEST_DIGITS
    batch = GLOBAL_BATCH["keras"]
    tf.keras.utils.set_random_seed(1)
    model = program.create_model()
    crossentropy = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.Adam(0.01), crossentropy, ["accuracy"])
    schedule = tf.keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 * 0.7**epoch)
    history = model.fit(
        images[:split], labels[:split], batch, 3, 0, shuffle=False, callbacks=[schedule]
    ).history
    loss, accuracy = model.evaluate(images[split:end], labels[split:end], batch, verbose=0)
    np.savez(f"{folder}/keras.npz", *model.get_weights())
    return {
        "losses": history["loss"],
        "training_accuracies": history["accuracy"],
        "loss": loss,
        "accuracy": accuracy,
    }


@contextlib.contextmanager
def graph_of(module):
    """A graph and its session, and a program's module."""
    import tensorflow.compat.v1 as tf

    with tf.Graph().as_default(), tf.Session() as session:
        yield tf, __import__(module), session


def fed(tf, arrays):
    return [tf.placeholder(one.dtype, one.shape[1:]) for one in arrays]


def stepped(session, step, loss, inputs, arrays, file, variables):
    """The losses of all steps, and the weights in a file."""
    import tensorflow.compat.v1 as tf

    session.run(tf.global_variables_initializer())
    batches = [dict(zip(inputs, values, strict=True)) for values in zip(*arrays, strict=True)]
    found = [session.run([loss, step], batch)[0] for batch in batches]
    np.savez(file, **session.run({v.name: v for v in variables}))
    return np.asarray(found).tolist()


def plain_loop(folder):
    from sklearn.datasets import load_digits

    with graph_of("tensorflow_loop") as (tf, program, session):
        digits = load_digits()
        order = np.random.RandomState(0).permutation(len(digits.target))
        order = order[: 20 * GLOBAL_BATCH["loop"]].reshape(20, -1)
        arrays = (digits.data / 16).astype(np.float32)[order], digits.target.astype(np.int32)[order]
        x, y = fed(tf, arrays)
        tf.set_random_seed(1)  # what reset_ipu_seed sets
        loss = tf.losses.sparse_softmax_cross_entropy(y, program.model(x))
        step = tf.train.MomentumOptimizer(0.5, 0.9).minimize(loss)
        variables = tf.global_variables()
        return stepped(session, step, loss, (x, y), arrays, f"{folder}/loop.npz", variables)


def plain_pipeline(folder):
    with graph_of("tensorflow_pipeline") as (tf, program, session):
        arrays = [one.reshape(program.UPDATES, -1, *one.shape[3:]) for one in program.samples(1)]
        program.BATCH = arrays[0].shape[1]
        x, y = fed(tf, arrays)
        loss = program.last_stage(*program.second_stage(*program.first_stage(x, y)))
        step = tf.train.GradientDescentOptimizer(program.RATE).minimize(loss)
        variables = tf.trainable_variables()
        return stepped(session, step, loss, (x, y), arrays, f"{folder}/pipeline.npz", variables)


def plain_shards(folder, replicas=4):
    with graph_of("tensorflow_shards") as (tf, program, session):
        arrays = program.samples(replicas)
        x, y = fed(tf, arrays)
        hidden = tf.tanh(program.layer("first", tf.reshape(x, [-1, 3]), 8))
        errors = tf.reshape(program.layer("second", hidden, 1), y.shape) - y
        losses = tf.reduce_mean(tf.square(errors), axis=[1, 2])
        descent = tf.train.GradientDescentOptimizer(program.RATE)
        step = descent.minimize(tf.reduce_mean(losses))
        variables = tf.trainable_variables()
        return stepped(session, step, losses, (x, y), arrays, f"{folder}/shards.npz", variables)


def plain_resnet(folder, replicas):
    """The network of each replica's part, and one mean: each replica normalises its own rows."""
    with graph_of("tensorflow_resnet") as (tf, program, session):
        images, labels = program.samples(replicas)
        x, y = fed(tf, (images, labels))
        parts = [program.loss_of(x[i], y[i]) for i in range(replicas)]
        loss, rate = tf.add_n(parts) / replicas, tf.placeholder(tf.float32, [])
        train = tf.train.MomentumOptimizer(rate, momentum=0.9).minimize(loss)
        held = {v.handle.op.name: v for v in tf.global_variables()}
        moves = {}
        for one in tf.get_default_graph().get_operations():
            if one.type == "AssignSubVariableOp" and "moving" in one.inputs[0].op.name:
                moves.setdefault(one.inputs[0].op.name, []).append(one.inputs[1])
        assert moves
        assert all(len(deltas) == replicas for deltas in moves.values())
        losses = []
        session.run(tf.global_variables_initializer())
        for number, (own_x, own_y) in enumerate(zip(images, labels, strict=True)):
            values = {x: own_x, y: own_y, rate: program.RATES[number // program.ITERATIONS]}
            found, deltas, _ = session.run([loss, moves, train], values)
            losses.append(float(found))
            for name, each in deltas.items():  # what a reader of all replicas' averages sees
                held[name].load(held[name].eval(session) - np.mean(each, axis=0), session)
        values = session.run({v.name: v for v in tf.global_variables()})
        np.savez(f"{folder}/resnet{replicas}.npz", **values)
        return losses


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    return folder, run_job(run_plainly, instances=1, timeout=200, folder=str(folder))[0]


@pytest.fixture(scope="module", params=LOCAL_REPLICAS, ids=lambda local: f"2x{local}")
def job(request, tmp_path_factory):
    """All replicas, the folder of weights, and both instances' answers."""
    replicas = 2 * request.param
    folder = tmp_path_factory.mktemp("job")
    ranks = run_job(
        run_programs,
        replicas=replicas,
        options=["--ipus-per-replica=4"],
        timeout=200,
        folder=str(folder),
    )
    return replicas, folder, ranks


def assert_equal_weights(file, reference):
    with np.load(file) as found, np.load(reference) as expected:
        assert sorted(found) == sorted(expected)
        for name in expected:
            np.testing.assert_allclose(found[name], expected[name], rtol=2e-4, atol=2e-5)


def test_a_compiled_loop_with_queues(job, plain):
    replicas, folder, ranks = job
    losses = plain[1]["loop"]
    first, second = (rank["loop"] for rank in ranks)
    assert first["digest"] == second["digest"]
    assert first["own"] != second["own"]
    assert first["losses"] == second["losses"]
    np.testing.assert_allclose(first["losses"], losses, rtol=1e-4)
    own = np.hstack([first["own"], second["own"]])
    assert own.shape == (4 * 5, replicas)
    np.testing.assert_allclose(own.mean(1), losses, rtol=1e-4)
    for rank in (first, second):
        np.testing.assert_allclose(rank["totals"], np.reshape(losses, (4, 5)).sum(1), rtol=1e-4)
    assert losses[-1] < losses[0] / 3
    assert_equal_weights(folder / "loop.npz", plain[0] / "loop.npz")
    with np.load(folder / "loop.npz") as variables:
        assert any("Momentum" in name for name in variables)
    assert (folder / "loop.index").is_file()


def test_keras_fits_with_many_steps_per_execution(job, plain):
    _, folder, ranks = job
    first, second = (rank["keras"] for rank in ranks)
    assert first.keys() == second.keys()
    for name in first.keys() - {"rank"}:
        assert first[name] == second[name], name
    expected = plain[1]["keras"]
    for name in ("losses", "training_accuracies", "loss", "accuracy"):
        np.testing.assert_allclose(first[name], expected[name], rtol=1e-4)
    assert expected["accuracy"] > 0.85
    assert_equal_weights(folder / f"keras{SUFFIX}.npz", plain[0] / "keras.npz")
    assert Path(f"{folder}/keras{SUFFIX or '.index'}").is_file()


@pytest.mark.skipif(not ESTIMATORS, reason="`tf.layers` is gone where there is Keras 3")
def test_a_residual_network_with_batch_normalisation(job, plain):
    replicas, folder, ranks = job
    first, second = (rank["resnet"] for rank in ranks)
    losses = plain[1]["resnet"][str(replicas)]
    assert first["digest"] == second["digest"]
    assert first["losses"] == second["losses"]
    np.testing.assert_allclose(first["losses"], losses, rtol=1e-4)
    assert losses[-1] < losses[0]
    assert_equal_weights(folder / "resnet.npz", plain[0] / f"resnet{replicas}.npz")


def test_a_pipelined_convolutional_network(job, plain):
    _, folder, ranks = job
    losses = plain[1]["pipeline"]
    first, second = (rank["pipeline"] for rank in ranks)
    assert first["digest"] == second["digest"]
    own = [np.reshape(rank["losses"], (len(losses), -1)) for rank in (first, second)]
    np.testing.assert_allclose(np.mean(own, axis=(0, 2)), losses, rtol=1e-4)
    assert losses[-1] < losses[0]
    assert_equal_weights(folder / "pipeline.npz", plain[0] / "pipeline.npz")


def test_layers_on_shards_and_replicas(job, plain):
    replicas, folder, ranks = job
    if "shards" not in ranks[0]:
        assert replicas != 4
        return
    losses = np.asarray(plain[1]["shards"])
    assert losses[-1].mean() < losses[0].mean()
    for way in ("named", "automatic"):
        for rank, answer in enumerate(one["shards"] for one in ranks):
            own = slice(2 * rank, 2 * rank + 2)
            assert answer[way]["replica"] == [[2 * rank, 2 * rank + 1]] * len(losses)
            np.testing.assert_allclose(answer[way]["own"], losses[:, own], rtol=1e-4)
            total = np.repeat(losses.sum(axis=1)[:, np.newaxis], 2, axis=1)
            np.testing.assert_allclose(answer[way]["sum"], total, rtol=1e-4)
            assert_equal_weights(f"{folder}/shards.{way}.{rank}.npz", plain[0] / "shards.npz")
        files = [f"{folder}/shards.{way}.{rank}.npz" for rank in (0, 1)]
        with np.load(files[0]) as first, np.load(files[1]) as second:
            for name in first:
                np.testing.assert_array_equal(first[name], second[name])
