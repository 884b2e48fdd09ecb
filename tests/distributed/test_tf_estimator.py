"""The Estimator on real ranks: equal variables, equal to one process, resumable by all."""

import importlib.util
import json
import socket
import subprocess
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.distributed.jobs import LAUNCHER, ROOT, run_command, run_job
from tests.distributed.warm import python

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow_estimator") is None,
    reason="TensorFlow 2.16 and later have no estimators",
)

BATCH = 8
STEPS = 6
EXAMPLES = ROOT / "examples"
FEW_STEPS = "--num-steps=150"  # enough for the accuracy that the examples ask for


def samples():
    rng = np.random.default_rng(7)
    images = rng.normal(size=(2 * STEPS * BATCH, 6, 6, 1)).astype(np.float32)
    return images, rng.integers(0, 3, size=len(images)).astype(np.int32)


def model(optimizer_name, batch_norm):
    def model_fn(features, labels, mode, params):
        import tensorflow.compat.v1 as tf

        import popdist
        from popdist_tf import ipu

        layers = [tf.keras.layers.Conv2D(2, 3, activation="tanh")]
        if batch_norm:
            layers.append(tf.keras.layers.BatchNormalization())
        layers += [tf.keras.layers.Flatten(), tf.keras.layers.Dense(3)]
        network = tf.keras.Sequential(layers)
        logits = network(features, training=mode == tf.estimator.ModeKeys.TRAIN)
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        if optimizer_name == "diverging":
            optimizer = tf.train.GradientDescentOptimizer(0.1 * (1 + popdist.getInstanceIndex()))
        elif optimizer_name == "adam":
            optimizer = tf.train.AdamOptimizer(0.01)
        else:
            optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
        gradients = optimizer.compute_gradients(loss, network.trainable_variables)

        def apply(*reduced):
            return optimizer.apply_gradients(zip(reduced, network.trainable_variables, strict=True))

        assert params["batch_size"] in (BATCH, 2 * BATCH)
        return ipu.ipu_estimator.IPUEstimatorSpec(
            mode=mode,
            loss=loss,
            train_op=tf.identity(loss),
            host_call=(apply, [gradient for gradient, _ in gradients]),
        )

    return model_fn


def heads(features, labels, mode, params):
    """Two heads on one trunk: a class and a number, with a loss and several metrics each."""
    import tensorflow.compat.v1 as tf

    from popdist_tf import ipu

    trunk = tf.keras.layers.Dense(4, activation="tanh", name="trunk")
    flat = trunk(tf.reshape(features, [-1, 36]))
    logits = tf.keras.layers.Dense(3, name="kind")(flat)
    number = tf.keras.layers.Dense(1, name="number")(flat)[:, 0]
    spec = ipu.ipu_estimator.IPUEstimatorSpec
    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {"kind": tf.argmax(logits, 1), "number": number}
        output = tf.estimator.export.PredictOutput(predictions)
        base = tf.estimator.EstimatorSpec
        return base(mode, predictions=predictions, export_outputs={"serving_default": output})
    target = tf.cast(labels, tf.float32) - 1
    kind_loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    number_loss = tf.losses.mean_squared_error(target, number, weights=0.5)
    loss = tf.losses.get_total_loss()
    if mode == tf.estimator.ModeKeys.TRAIN:
        optimizer = tf.train.AdamOptimizer(0.01)
        if params.get("averages"):
            optimizer = ipu.optimizers.CrossReplicaOptimizer(optimizer)
        return spec(mode, loss=loss, train_op=optimizer.minimize(loss))

    def metrics(logits, labels, number, target, parts):
        return {
            "accuracy": tf.metrics.accuracy(labels, tf.argmax(logits, 1)),
            "square": tf.metrics.mean_squared_error(target, number),
            "kind": tf.metrics.mean(parts[0]),
            "part": tf.metrics.mean(parts[1]),
        }

    parts = tf.stack([kind_loss, number_loss])
    held = {"logits": logits, "labels": labels, "number": number, "target": target, "parts": parts}
    return spec(mode, loss=loss, eval_metrics=(metrics, held))


def error_of(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - the tests look at it
        return str(error)
    return "no error"


def of_heads(strategy, batch, arrays, **params):
    """Variables of a training with two heads, and its metrics and predictions if it is plain."""
    import tensorflow.compat.v1 as tf

    from popdist_tf import ipu

    config = ipu.ipu_run_config.RunConfig(train_distribute=strategy, tf_random_seed=3)
    estimator = ipu.ipu_estimator.IPUEstimator(heads, config=config, params=params)

    def input_fn():
        dataset = tf.data.Dataset.from_tensor_slices(arrays)
        return dataset.batch(batch, drop_remainder=True).repeat(2)

    found = variables_after(estimator, input_fn, [STEPS])
    if params.get("averages"):
        return found
    metrics = estimator.evaluate(input_fn, steps=STEPS)
    predicted = list(estimator.predict(lambda: input_fn().map(lambda x, _: x)))[:BATCH]
    metrics["number"] = np.mean([one["number"] for one in predicted])
    return found | {f"metric {name}": np.asarray(value) for name, value in metrics.items()}


def in_words(case, found):
    return {f"{case}/{name}": value for name, value in found.items()}


def trained_and_evaluated(strategy, batch, arrays):
    """Variables, what all ranks are told of evaluations, and what one folder holds of exports."""
    import tensorflow.compat.v1 as tf

    from popdist_tf import ipu

    config = ipu.ipu_run_config.RunConfig(
        train_distribute=strategy, tf_random_seed=3, save_checkpoints_steps=3
    )
    estimator = ipu.ipu_estimator.IPUEstimator(heads, config=config, params={})

    def receiver():
        images = tf.placeholder(tf.float32, [None, 6, 6, 1])
        return tf.estimator.export.TensorServingInputReceiver(images, images)

    def input_fn(arrays=arrays, batch=batch):
        return tf.data.Dataset.from_tensor_slices(arrays).batch(batch, drop_remainder=True)

    exporters = [
        tf.estimator.BestExporter(serving_input_receiver_fn=receiver),
        tf.estimator.FinalExporter("final", receiver),
        tf.estimator.LatestExporter("latest", receiver, exports_to_keep=None),
    ]
    metrics, exported = tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(input_fn, max_steps=STEPS - 1),
        tf.estimator.EvalSpec(
            lambda: input_fn(samples(), 2 * BATCH), exporters=exporters, throttle_secs=0
        ),
    )
    folder = Path(estimator.model_dir)
    found = {"metrics": {name: float(one) for name, one in metrics.items()}}
    found["results"] = [one is not None for one in exported]
    found["exports"] = {one.name: len(list(one.iterdir())) for one in folder.glob("export/*")}
    found["evaluations"] = len(list(folder.glob("eval/*")))
    names = sorted(estimator.get_variable_names())
    values = {f"both/{name}": np.asarray(estimator.get_variable_value(name)) for name in names}
    return values | {"evaluated": found}


def variables_after(estimator, input_fn, stops):
    for max_steps in stops:
        estimator.train(input_fn, max_steps=max_steps)
    names = sorted(estimator.get_variable_names())
    return {name: np.asarray(estimator.get_variable_value(name)) for name in names}


def estimator_for(optimizer, batch_norm, strategy=None, **settings):
    import tensorflow.compat.v1 as tf

    from popdist_tf import ipu

    tf.disable_v2_behavior()
    config = ipu.ipu_run_config.RunConfig(
        train_distribute=strategy, tf_random_seed=3, save_checkpoints_steps=2
    )
    return ipu.ipu_estimator.IPUEstimator(
        model(optimizer, batch_norm), config=config, train_batch_size=2 * BATCH, **settings
    )


def end_at(wanted, done, run_context):
    if done == wanted:
        end(run_context)


def end(run_context):
    run_context.request_stop()


def stopped_early(strategy, input_fn, instance):
    """Variables of a training that a hook of one worker ends after the second step."""
    import tensorflow.compat.v1 as tf

    class StopEarly(tf.train.SessionRunHook):
        done = 0

        def after_run(self, run_context, _):
            self.done += 1
            end_at(2, self.done, run_context)

    early = estimator_for("momentum", batch_norm=False, strategy=strategy)
    early.train(input_fn, steps=STEPS, hooks=[StopEarly()] if instance else [])
    names = sorted(early.get_variable_names())
    return {f"early/{name}": np.asarray(early.get_variable_value(name)) for name in names}


def unequal(strategy, instance):
    """Errors and warnings of trainings on data that are the same, but not as many, everywhere."""
    import tensorflow.compat.v1 as tf

    from popdist_tf import ipu

    estimator = ipu.ipu_estimator.IPUEstimator(
        heads, config=ipu.ipu_run_config.RunConfig(train_distribute=strategy)
    )

    def input_fn():
        whole = tf.data.Dataset.from_tensor_slices(samples())
        return whole.batch(BATCH, drop_remainder=True).take(STEPS - 2 * instance)

    answers = {"steps": error_of(estimator.train, input_fn, steps=3 + instance)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answers["together"] = error_of(estimator.train, input_fn, steps=2)
    answers["same rows"] = [text for one in caught if "PD418" in (text := str(one.message))]

    def last_smaller():
        rows = tf.data.Dataset.from_tensor_slices(samples())
        return rows.take(2 * BATCH - 1 - instance).batch(BATCH)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator.train(last_smaller)
    answers["last rows"] = [text for one in caught if "PD431" in (text := str(one.message))]
    return answers | {"uneven": error_of(estimator.train, input_fn)}


def estimators_in_job():
    import tensorflow.compat.v1 as tf

    from popdist_tf import ipu
    from popdist_tf.ipu import horovod as hvd
    from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy
    from popdist_tf.ipu.horovod.ipu_horovod_strategy import IPUHorovodStrategy

    hvd.init()
    strategy = IPUHorovodStrategy(variables_on_host=True)

    def input_fn(params, input_context):
        assert params["batch_size"] == BATCH
        assert input_context.num_input_pipelines == 2
        assert input_context.input_pipeline_id == hvd.rank()
        # This rank's half of every global batch.
        arrays = [
            array.reshape(STEPS, 2, BATCH, *array.shape[1:])[:, hvd.rank()] for array in samples()
        ]
        return tf.data.Dataset.from_tensor_slices(tuple(arrays)).repeat()

    answers = {}
    for case, (optimizer, batch_norm, stops) in {
        "adam": ("adam", False, [STEPS]),
        "momentum": ("momentum", False, [STEPS]),
        "resumed": ("adam", True, [3, STEPS]),
    }.items():
        estimator = estimator_for(optimizer, batch_norm=batch_norm, strategy=strategy)
        found = variables_after(estimator, input_fn, stops)
        answers |= {f"{case}/{name}": value for name, value in found.items()}
    halves = (one.reshape(STEPS, 2, BATCH, *one.shape[1:])[:, hvd.rank()] for one in samples())
    own = tuple(one.reshape(-1, *one.shape[2:]) for one in halves)
    answers |= in_words("heads", of_heads(strategy, BATCH, own))
    answers |= trained_and_evaluated(strategy, BATCH, own)
    reduces_not = PopDistStrategy(add_ipu_cross_replica_reductions=False)
    averaged = of_heads(reduces_not, BATCH, own, averages=True)
    answers |= in_words("averaged", averaged)
    # Hosts that share no folder: only the first rank finds what is to be continued.
    with tempfile.TemporaryDirectory() as folder:
        apart = estimator_for("adam", batch_norm=True, strategy=strategy, model_dir=folder)
        found = variables_after(apart, input_fn, [3, STEPS])
        if hvd.rank() == 0:
            answers |= {f"apart/{name}": value for name, value in found.items()}
    warm = estimator_for(
        "adam", batch_norm=True, strategy=strategy, warm_start_from=estimator.model_dir
    )
    answers |= {f"warm/{n}": v for n, v in variables_after(warm, input_fn, [1]).items()}

    # The chief would evaluate with collectives while the others train.
    together = ipu.ipu_run_config.RunConfig(train_distribute=strategy, eval_distribute=strategy)
    evaluating = ipu.ipu_estimator.IPUEstimator(
        model("adam", batch_norm=False), config=together, train_batch_size=2 * BATCH
    )
    try:
        tf.estimator.train_and_evaluate(
            evaluating, tf.estimator.TrainSpec(input_fn, 1), tf.estimator.EvalSpec(input_fn)
        )
    except NotImplementedError as error:
        answers["evaluating"] = str(error)

    answers |= unequal(strategy, hvd.rank())
    answers |= stopped_early(strategy, input_fn, hvd.rank())

    diverging = estimator_for("diverging", batch_norm=False, strategy=strategy)
    try:
        diverging.train(input_fn, max_steps=STEPS)
    except RuntimeError as error:
        answers["diverging"] = str(error)
    return answers


def estimators_alone():
    import tensorflow.compat.v1 as tf

    def input_fn(params):
        dataset = tf.data.Dataset.from_tensor_slices(samples())
        return dataset.batch(params["batch_size"], drop_remainder=True).repeat()

    answers = {}
    for optimizer in ("adam", "momentum"):
        found = variables_after(estimator_for(optimizer, batch_norm=False), input_fn, [STEPS])
        answers |= {f"{optimizer}/{name}": value for name, value in found.items()}
    answers |= trained_and_evaluated(None, 2 * BATCH, samples())
    return answers | in_words("heads", of_heads(None, 2 * BATCH, samples()))


@pytest.fixture(scope="module")
def alone():
    return run_job(estimators_alone, instances=1)[0]


@pytest.fixture(scope="module")
def ranks():
    return run_job(estimators_in_job, timeout=300)


def test_ranks_have_equal_variables_slots_included(ranks):
    assert any("Adam" in name for name in ranks[0])
    assert any("Momentum" in name for name in ranks[0])
    said = {
        "diverging",
        "evaluated",
        "evaluating",
        "last rows",
        "same rows",
        "steps",
        "together",
        "uneven",
    }
    for name in ranks[0].keys() & ranks[1].keys() - said:
        if "/metric " in name:
            continue  # each rank evaluates its own data
        np.testing.assert_array_equal(ranks[0][name], ranks[1][name])


def test_variables_are_those_of_one_process_on_the_global_batch(ranks, alone):
    assert sum(name.startswith("heads/") for name in alone) > 6
    for name, value in alone.items():
        if "/metric " in name or name == "evaluated":
            continue
        np.testing.assert_allclose(ranks[0][name], value, rtol=2e-5, atol=2e-6)


def test_train_and_evaluate_evaluates_and_exports_once_and_tells_all_ranks(ranks, alone):
    expected = None
    for answers in (alone, *ranks):
        found = answers["evaluated"]
        metrics = found["metrics"]
        assert metrics["global_step"] == STEPS - 1
        expected = expected or metrics  # of one process
        assert metrics == pytest.approx(expected, rel=2e-5)
        assert found["exports"]["final"] == 1
        assert found["exports"]["latest"] == 2
        assert found["exports"] == alone["evaluated"]["exports"]
        assert found["results"] == [True] * 3
        assert found["evaluations"] == alone["evaluated"]["evaluations"]


def test_an_optimizer_that_averages_by_itself_makes_the_same_updates(ranks, alone):
    names = [name for name in alone if name.startswith("heads/") and "/metric " not in name]
    for name in names:
        found = ranks[0][name.replace("heads/", "averaged/", 1)]
        np.testing.assert_allclose(found, alone[name], rtol=2e-5, atol=2e-6)


def test_a_hook_of_one_worker_stops_all_after_the_same_step(ranks):
    for rank in ranks:
        assert rank["early/global_step"] == 2


def test_workers_that_train_on_the_same_rows_are_warned(ranks):
    assert "[PD418] all 2 instances train on the same rows" in ranks[0]["same rows"][0]
    assert ranks[1]["same rows"] == []


def test_a_smaller_last_batch_of_one_worker_is_named(ranks):
    (said,) = ranks[0]["last rows"]
    assert "[PD431] the instances have batches of different sizes" in said
    assert ranks[1]["last rows"] == []


def test_metrics_of_several_heads_are_those_of_one_process(ranks, alone):
    metrics = [name for name in alone if "/metric " in name and not name.endswith("number")]
    assert len(metrics) == 4 + 2  # the model's own, the loss and the global step
    for name in metrics:
        # Of equal numbers of samples of each rank.
        mean = np.mean([rank[name] for rank in ranks])
        np.testing.assert_allclose(mean, alone[name], rtol=2e-5, err_msg=name)
    assert ranks[0]["heads/metric kind"] != ranks[1]["heads/metric kind"]
    for rank in ranks:
        assert rank["heads/metric global_step"] == STEPS
    # The first half of the global batch is the first rank's.
    number = "heads/metric number"
    np.testing.assert_allclose(ranks[0][number], alone[number], rtol=1e-4)


@pytest.mark.parametrize("case", ["adam", "resumed"])
def test_checkpoints_are_labelled_with_the_updates_they_hold(ranks, case):
    assert ranks[0][f"{case}/global_step"] == STEPS
    np.testing.assert_allclose(ranks[0][f"{case}/beta1_power"], 0.9 ** (STEPS + 1), rtol=1e-6)


def test_training_with_batch_norm_saves_on_all_ranks_and_resumes(ranks):
    assert any("moving_mean" in name for name in ranks[0])


def test_ranks_with_folders_of_their_own_resume_from_the_first_ones_checkpoint(ranks):
    names = [name for name in ranks[0] if name.startswith("apart/")]
    assert len(names) > 3
    for name in names:
        expected = ranks[0][name.replace("apart/", "resumed/")]
        np.testing.assert_array_equal(ranks[0][name], expected)


def test_a_warm_start_begins_with_the_other_trainings_weights(ranks):
    assert ranks[0]["warm/global_step"] == 1
    names = [name.partition("/")[2] for name in ranks[0] if name.startswith("warm/sequential")]
    for name in [name for name in names if name.endswith(("kernel", "bias"))]:
        moved = ranks[0][f"warm/{name}"] - ranks[0][f"resumed/{name}"]
        # A step of Adam, whose slots are warm too, is small.
        assert 0 < np.abs(moved).max() < 0.02


def test_evaluations_that_would_wait_for_training_workers_are_refused(ranks):
    for rank in ranks:
        assert "[PD423] the chief evaluates alone during train_and_evaluate" in rank["evaluating"]


def test_other_numbers_of_steps_or_batches_stop_the_training(ranks):
    for rank in ranks:
        assert "steps=3 and max_steps=None on instance 0; a training with steps=4" in rank["steps"]
        assert rank["together"] == "no error"
        assert "[PD007] the instances have different numbers of batches" in rank["uneven"]


def test_weights_that_the_first_step_makes_different_stop_the_training(ranks):
    for rank in ranks:
        assert (
            "[PD007] the workers hold different weights after the first step" in rank["diverging"]
        )
        assert "4 of 4 weights differ: sequential" in rank["diverging"]


def workers(output):
    lines = sorted(line for line in output.splitlines() if line.startswith("worker "))
    assert len(lines) == 2, output
    return [line.partition(": ")[2] for line in lines]


def test_the_horovod_example_trains_on_two_ranks(tmp_path):
    program = [
        *python("tensorflow"),
        EXAMPLES / "tf_estimator_horovod.py",
        f"--model-dir={tmp_path}/model",
        FEW_STEPS,
    ]
    code, output = run_command([*LAUNCHER, "--num-instances=2", *program])
    assert code == 0, output
    first, second = workers(output)
    assert first == second


def free_ports(count):
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def test_the_grpc_example_trains_with_two_workers_started_by_hand(tmp_path):
    cluster = {"worker": [f"localhost:{port}" for port in free_ports(2)]}
    program = [
        *python("tensorflow"),
        EXAMPLES / "tf_estimator_grpc.py",
        f"--model-dir={tmp_path}/model",
        FEW_STEPS,
    ]
    script = "\n".join(
        f"TF_CONFIG='{json.dumps({'cluster': cluster, 'task': {'type': 'worker', 'index': i}})}' "
        f'{subprocess.list2cmdline(map(str, program))} & pids="$pids $!"'
        for i in range(2)
    )
    code, output = run_command(
        ["bash", "-c", f"{script}\nfor pid in $pids; do wait $pid || exit 1; done"]
    )
    assert code == 0, output
    first, second = workers(output)
    assert first == second


def test_the_grpc_example_trains_under_poprun(tmp_path):
    program = [
        *python("tensorflow"),
        EXAMPLES / "tf_estimator_grpc.py",
        f"--model-dir={tmp_path}/model",
        FEW_STEPS,
    ]
    code, output = run_command([*LAUNCHER, "--num-instances=2", "--tf-config=yes", *program])
    assert code == 0, output
    first, second = workers(output)
    assert first == second
