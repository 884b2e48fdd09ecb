"""Reductions, variables and Keras training of the Horovod strategies, on real ranks.

TensorFlow takes seconds to start, so each job answers many questions at once, and each test asks
about one of the answers.
"""

import json
import multiprocessing
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
import pytest

from tests.distributed.jobs import run_job

SEED = 11
BATCH = 4
STEPS = 3
EPOCHS = 2


def data(instance):
    rng = np.random.default_rng([SEED, instance])
    samples = BATCH * STEPS * 2
    return (
        rng.normal(size=(samples, 6, 6, 1)).astype(np.float32),
        rng.integers(0, 3, size=samples),
    )


def collectives():
    import tensorflow as tf

    import popdist
    from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy

    strategy = PopDistStrategy()
    instance = popdist.getInstanceIndex()
    summed, mean = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN
    with strategy.scope():
        weight = tf.Variable(5.0 + instance)
        table = tf.Variable(tf.zeros([4, 2]))
        counter = tf.Variable(
            0.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.MEAN,
            trainable=False,
        )

    def replica_step():
        context = tf.distribute.get_replica_context()
        number = tf.cast(context.replica_id_in_sync_group, tf.float32)
        # A different number of rows from each instance.
        rows = tf.range(1 + instance)
        with tf.GradientTape() as tape:
            tape.watch(number)
            total = context.all_reduce(summed, number * number)
        slices = tf.IndexedSlices(tf.ones([1 + instance, 2]), rows, [4, 2])
        reduced = context.all_reduce(summed, slices)
        counter.assign_add(2 * number)
        return {
            "sum": total,
            "mean": context.all_reduce(mean, number),
            "gradient": tape.gradient(total, number),
            "gathered": context.all_gather(tf.reshape(number, [1, 1]), axis=1),
            "table": tf.convert_to_tensor(reduced),
            "constant": context.all_reduce(summed, 1.0),
            "bfloat16": tf.cast(
                context.all_reduce(summed, tf.cast(number, tf.bfloat16)), tf.float32
            ),
        }

    @tf.function
    def loop():
        # The results of all iterations but the last are unused, and nothing else orders them.
        last = tf.constant(0.0)
        for index in tf.range(20):
            value = tf.fill([100_000], tf.cast(index + instance, tf.float32))
            last = strategy.reduce(summed, value, axis=None)[0]
        return last

    answers = strategy.run(tf.function(replica_step))
    local = {
        name: [v.numpy() for v in strategy.experimental_local_results(value)]
        for name, value in answers.items()
    }
    outside = {
        "outside_sum": strategy.reduce(summed, tf.constant(instance + 1.0), axis=None),
        "outside_mean": strategy.reduce(mean, tf.constant(instance + 1), axis=None),
        "on_read": counter.read_value(),
        "weight": weight.read_value(),
        "loop": loop(),
        "constants": tf.function(
            lambda: (
                strategy.reduce(summed, 1.0 + instance, axis=None)
                + strategy.extended._collectives.broadcast(tf.constant(10.0 + instance))
            )
        )(),
    }
    assert table.shape == (4, 2)
    return {
        **{name: np.stack(values) for name, values in local.items()},
        **{name: np.asarray(value) for name, value in outside.items()},
        "replicas": strategy.num_replicas_in_sync,
        "checkpoints": bool(strategy.extended.should_checkpoint),
        "kinds": f"{type(weight).__name__} {type(counter).__name__}",
    }


@pytest.fixture(scope="module")
def answers():
    return run_job(collectives, instances=2, replicas=4)


def test_replicas_have_global_ids(answers):
    assert answers[0]["replicas"] == 4
    assert np.concatenate([a["gradient"] for a in answers]).tolist() == [0, 8, 16, 24]
    for instance in answers:
        assert instance["gathered"].tolist() == [[[0, 1, 2, 3]]] * 2


def test_sums_and_means_are_over_all_replicas(answers):
    for instance in answers:
        assert instance["sum"].tolist() == [14, 14]
        assert instance["mean"].tolist() == [1.5, 1.5]
        assert instance["bfloat16"].tolist() == [6, 6]


def test_an_equal_constant_counts_once_for_each_replica(answers):
    assert [a["constant"].tolist() for a in answers] == [[4, 4], [4, 4]]


def test_a_plain_tensor_outside_of_run_counts_once_for_each_instance(answers):
    assert [float(a["outside_sum"]) for a in answers] == [3, 3]
    assert [float(a["outside_mean"]) for a in answers] == [1.5, 1.5]


def test_slices_with_different_numbers_of_rows_are_added(answers):
    expected = [[4, 4], [2, 2], [0, 0], [0, 0]]
    for instance in answers:
        assert instance["table"].tolist() == [expected, expected]


def test_a_variable_that_each_replica_writes_is_averaged_on_read(answers):
    assert [float(a["on_read"]) for a in answers] == [3.0, 3.0]


def test_variables_start_from_the_first_instance(answers):
    assert [float(a["weight"]) for a in answers] == [5, 5]
    assert answers[0]["kinds"] == "IPUMirroredVariable IPUSyncOnReadVariable"


def test_iterations_of_a_loop_do_not_meet_in_flight(answers):
    assert [float(a["loop"]) for a in answers] == [39, 39]


def test_constants_that_differ_between_instances_do_not_deadlock(answers):
    assert [float(a["constants"]) for a in answers] == [13, 13]


def test_only_the_first_instance_writes_checkpoints(answers):
    assert [a["checkpoints"] for a in answers] == [True, False]


def model_for(strategy, steps_per_execution=STEPS):
    import tensorflow as tf

    import popdist

    with strategy.scope():
        # Each instance starts elsewhere.
        tf.keras.utils.set_random_seed(SEED + popdist.getInstanceIndex())
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Conv2D(3, 3, activation="relu", input_shape=(6, 6, 1)),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(3),
            ]
        )
        averaged = {"use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": 3}
        model.compile(
            optimizer=tf.keras.optimizers.Adam(0.01, **averaged),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=steps_per_execution,
        )
    return model


def trained(model, dataset, steps=None):
    history = model.fit(
        dataset if steps is None else dataset.repeat(),
        epochs=EPOCHS,
        steps_per_epoch=steps,
        shuffle=False,
        verbose=0,
    ).history
    evaluated = model.evaluate(dataset, verbose=0) if steps is None else []
    return {
        **{f"weight{i}": w for i, w in enumerate(model.get_weights())},
        **{f"slot{i}": np.asarray(v) for i, v in enumerate(model.optimizer.variables)},
        "loss": np.asarray(history["loss"]),
        "accuracy": np.asarray(history["accuracy"]),
        "evaluated": np.asarray(evaluated),
    }


def as_steps(parts):
    """The batches of several parts, in the order in which replicas take them."""
    images, labels = (np.stack(arrays) for arrays in zip(*map(data, parts), strict=True))
    batches = [
        array.reshape(len(parts), -1, BATCH, *array.shape[2:]).swapaxes(0, 1)
        for array in (images, labels)
    ]
    return tuple(array.reshape(-1, *array.shape[3:]) for array in batches)


def keras_in_job():
    import tensorflow as tf

    import popdist
    from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy

    strategy = PopDistStrategy()
    local = popdist.getNumLocalReplicas()
    first = popdist.getInstanceIndex() * local
    samples = as_steps(range(first, first + local))
    dataset = tf.data.Dataset.from_tensor_slices(samples).batch(BATCH, drop_remainder=True)
    return trained(model_for(strategy), dataset)


def keras_alone():
    import tensorflow as tf

    from popdist_tf.ipu.ipu_strategy import IPUStrategy

    dataset = tf.data.Dataset.from_tensor_slices(as_steps(range(4))).batch(4 * BATCH)
    return trained(model_for(IPUStrategy()), dataset)


@pytest.fixture(scope="module")
def global_batch():
    (answer,) = run_job(keras_alone, instances=1)
    return answer


@pytest.mark.parametrize("instances", [2, 4])
def test_keras_fit_equals_one_process_on_the_global_batch(instances, global_batch):
    ranks = run_job(keras_in_job, instances=instances, replicas=4)
    for name, expected in global_batch.items():
        for rank in ranks:
            np.testing.assert_array_equal(rank[name], ranks[0][name])
        np.testing.assert_allclose(ranks[0][name], expected, rtol=2e-5, atol=2e-6)


def sessions_of_workers():
    """Weights that a session of TensorFlow 1 trains, and errors of sessions without a server."""
    import tensorflow.compat.v1 as tf

    from popdist_tf.ipu.ipu_multi_worker_strategy import IPUMultiWorkerStrategyV1

    tf.disable_v2_behavior()
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = IPUMultiWorkerStrategyV1(cluster)
    task = cluster.task_type, cluster.task_id
    x, y = rows_of_worker(cluster.task_id)
    with strategy.scope():
        weight = tf.get_variable("weight", [3, 1], initializer=tf.zeros_initializer())
        optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
        given = [tf.placeholder(tf.float32, part.shape) for part in (x, y)]

        def step(rows, labels):
            mean = tf.reduce_mean((rows @ weight - labels) ** 2)
            return optimizer.minimize(mean / strategy.num_replicas_in_sync)

        update = strategy.unwrap(strategy.experimental_run_v2(step, args=given))
        start = tf.global_variables_initializer()

    def run(target, config=None):
        with tf.Session(target, config=config) as session:
            session.run(start)
            for _ in range(STEPS):
                session.run(update, dict(zip(given, (x, y), strict=True)))
            return session.run(weight)

    address = f"grpc://{cluster.cluster_spec().task_address(*task)}"
    errors = [error_of(lambda target=target: run(target)) for target in ("", address)]
    config = strategy.update_config_proto(tf.ConfigProto())
    server = tf.distribute.Server(cluster.cluster_spec(), *task, config=config)
    return {"trained": run(server.target, config), "errors": errors}


def rows_of_worker(index):
    x = np.random.default_rng([8, index]).normal(size=(BATCH, 3)).astype(np.float32)
    return x, x.sum(axis=1, keepdims=True) + index


def in_fresh_process(function):
    """What a function returns in a process that is forked before TensorFlow starts."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(function).result()


def keras_of_workers():
    import tensorflow as tf

    import popdist
    from popdist_tf.ipu.ipu_multi_worker_strategy import IPUMultiWorkerStrategy

    answers = in_fresh_process(sessions_of_workers)
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = IPUMultiWorkerStrategy(cluster)
    options = tf.data.Options()
    # TensorFlow divides a batch over the workers; the data is this worker's own already.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = tf.data.Dataset.from_tensor_slices(data(popdist.getInstanceIndex()))
    dataset = dataset.batch(2 * BATCH, drop_remainder=True).with_options(options)
    # Keras 3 cannot take several steps at once from TensorFlow's data sets of several workers.
    return answers | trained(model_for(strategy, steps_per_execution=1), dataset, steps=2 * STEPS)


def keras_of_both():
    import tensorflow as tf

    from popdist_tf.ipu.ipu_strategy import IPUStrategy

    dataset = tf.data.Dataset.from_tensor_slices(as_steps(range(2))).batch(2 * BATCH)
    return trained(model_for(IPUStrategy()), dataset, steps=2 * STEPS)


@pytest.fixture(scope="module")
def workers():
    return run_job(keras_of_workers, options=["--tf-config=yes"])


def test_sessions_of_two_grpc_workers_equal_one_process_on_the_global_batch(workers):
    weight, speed = np.zeros((3, 1)), np.zeros((3, 1))
    x, y = (np.concatenate(parts) for parts in zip(*map(rows_of_worker, range(2)), strict=True))
    for _ in range(STEPS):
        speed = 0.9 * speed + 2 * x.T @ (x @ weight - y) / len(x)
        weight = weight - 0.1 * speed
    for rank in workers:
        np.testing.assert_array_equal(rank["trained"], workers[0]["trained"])
        np.testing.assert_allclose(rank["trained"], weight, rtol=2e-5, atol=2e-6)


def test_sessions_that_reach_no_server_of_the_cluster_are_refused(workers):
    for rank in workers:
        unconnected, not_running = rank["errors"]
        assert "[PD412] a session of TensorFlow 1 under IPUMultiWorkerStrategy" in unconnected
        assert "is not connected to the cluster" in unconnected
        assert "which is not running" in not_running
        assert "tf.distribute.Server(resolver.cluster_spec()" in not_running


def test_keras_fit_of_two_grpc_workers_equals_one_process_on_the_global_batch(workers):
    ranks = workers
    (alone,) = run_job(keras_of_both, instances=1)
    for name, expected in alone.items():
        np.testing.assert_array_equal(ranks[0][name], ranks[1][name])
        np.testing.assert_allclose(ranks[0][name], expected, rtol=2e-5, atol=2e-6)


def error_of(call, kind=ValueError):
    try:
        call()
    except kind as error:
        return str(error)
    return "no error"


def disagreements():
    import tensorflow as tf

    import popdist
    from popdist_tf.ipu.distributed.ipu_horovod_strategy import IPUHorovodStrategy
    from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy

    instance = popdist.getInstanceIndex()
    answers = {}
    cluster = {"worker": ["localhost:1", "localhost:2"]}
    task = {"type": "worker", "index": instance}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    answers["PopDistStrategy"] = error_of(PopDistStrategy)
    answers["IPUHorovodStrategy"] = error_of(IPUHorovodStrategy)
    del os.environ["TF_CONFIG"]
    answers["early"] = error_of(IPUHorovodStrategy)

    strategy = PopDistStrategy()
    try:
        with strategy.scope():
            variable = tf.Variable(1.0, name="shared")
            if instance == 1:
                tf.Variable([1.0, 2.0], name="extra")
        strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", variable))
    except RuntimeError as error:
        answers["models"] = str(error)
    try:
        with strategy.scope():
            model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
            model.compile("sgd", "mse")
        samples = np.zeros((8 + 4 * instance, 1), np.float32)
        model.fit(tf.data.Dataset.from_tensor_slices((samples, samples)).batch(4), verbose=0)
    except RuntimeError as error:
        answers["data"] = str(error)
    rows = tf.data.Dataset.range(2)
    lengths = [rows.filter(lambda _: True), rows], [rows.repeat(), rows]
    answers["lengths"] = [
        error_of(lambda d=d: strategy.experimental_distribute_dataset(d[instance]), RuntimeError)
        for d in lengths
    ]
    answers["keras"] = 3 if hasattr(tf.keras.optimizers.Optimizer, "apply") else 2
    return answers | alone("save", "read", "predict") | alone("evaluate")


def alone(*calls):
    """The errors where the first instance makes a call before all go on to train."""
    import tensorflow as tf

    import popdist
    from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy

    samples = np.ones((8, 1), np.float32)
    with PopDistStrategy().scope():
        layers = tf.keras.layers.BatchNormalization(), tf.keras.layers.Dense(1)
        model = tf.keras.Sequential([tf.keras.Input((1,)), *layers])
        model.compile("sgd", "mse", metrics=["mae"])

    def fit():
        model.fit(samples, samples, batch_size=4, verbose=0)

    fit()
    makes = {
        "predict": lambda: model.predict(samples, batch_size=4, verbose=0),
        "evaluate": lambda: model.evaluate(samples, samples, batch_size=4, verbose=0),
        "save": lambda: model.save(f"{tempfile.mkdtemp()}/model.keras"),
        "read": model.metrics[-1].result,
    }

    def then_fit(call):
        if popdist.getInstanceIndex() == 0:
            call()
        fit()

    return {call: error_of(partial(then_fit, makes[call]), RuntimeError) for call in calls}


@pytest.fixture(scope="module")
def messages():
    return run_job(disagreements)


@pytest.mark.parametrize("strategy", ["PopDistStrategy", "IPUHorovodStrategy"])
def test_a_cluster_beside_horovods_job_is_refused(messages, strategy):
    for rank in messages:
        assert f"TF_CONFIG describes a cluster, and {strategy} takes" in rank[strategy]


def test_a_strategy_before_horovod_is_initialised_is_refused(messages):
    for rank in messages:
        assert "[PD411] Horovod has not been initialised" in rank["early"]


def test_a_different_model_on_one_instance_is_named(messages):
    for rank in messages:
        assert "[PD007]" in rank["models"]
        assert "the first step on instance 0" in rank["models"]
        assert "variable extra float32(2,) on instance 1" in rank["models"]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ("predict", "predict of a model on instance 0; an epoch of 2 steps on instance 1"),
        ("evaluate", "evaluate of a model on instance 0; an epoch of 2 steps on instance 1"),
        ("save", "the value of a variable of each replica: float32"),
        ("read", "the value of a variable of each replica: float32 () on instance 0"),
    ],
)
def test_what_one_instance_does_alone_is_named(messages, call, named):
    for rank in messages:
        if rank["keras"] == 3 and call == "save":
            # Keras 3 keeps moving averages apart, and saves no metrics: it exchanges nothing.
            assert rank[call] == "no error"
            continue
        assert "[PD007] the instances disagree" in rank[call]
        assert named in rank[call]


def test_data_sets_of_unequal_length_are_named_before_the_first_step(messages):
    for rank in messages:
        assert "a data set of 2 batches on instance 0" in rank["data"]
        assert "a data set of 3 batches on instance 1" in rank["data"]
        unknown, endless = rank["lengths"]
        other = "; a data set of 2 batches on instance 1"
        assert f"a data set of an unknown number of batches on instance 0{other}" in unknown
        assert f"a data set of batches without an end on instance 0{other}" in endless
