"""What a training keeps between steps, on two instances with two replicas each.

Every expectation is what TensorFlow's own `MirroredStrategy` computes in one process, from the same
program with as many replicas.
"""

import contextlib
import warnings
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest

from tests.distributed.jobs import run_job

REPLICAS = 4
STEPS = 3
ROWS = 4
AGGREGATIONS = ["NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA"]


def number():
    """This replica's number among all, in a graph."""
    import tensorflow as tf

    replica = tf.distribute.get_replica_context()
    return tf.cast(replica.replica_id_in_sync_group, tf.int32)


def samples():
    """Rows of all replicas: shape (steps, replicas, rows, 3), and a label for each."""
    rng = np.random.default_rng(21)
    features = rng.normal(size=(STEPS, REPLICAS, ROWS, 3)).astype(np.float32)
    return features, rng.integers(0, 2, size=(STEPS, REPLICAS, ROWS))


def words(call):
    """The value of a call, or the kind of its error."""
    try:
        return np.asarray(call(), np.float64).tolist()
    except (ValueError, RuntimeError, NotImplementedError) as error:
        return type(error).__name__


def variables(strategy):
    """Every kind of variable, after each kind of update by every replica."""
    import tensorflow as tf

    answers = {}
    for kept in ("AUTO", "ON_READ"):
        for aggregation in AGGREGATIONS:
            for update in ("assign", "assign_add"):
                with strategy.scope():
                    variable = tf.Variable(
                        10.0,
                        trainable=False,
                        synchronization=tf.VariableSynchronization[kept],
                        aggregation=tf.VariableAggregation[aggregation],
                    )

                @tf.function
                def step(variable=variable, update=update):
                    value = tf.cast(2 ** number(), tf.float32)
                    getattr(variable, update)(value)

                case = f"{kept} {aggregation} {update}"
                try:
                    strategy.run(step)
                except (ValueError, RuntimeError) as error:
                    answers[case] = type(error).__name__
                    continue
                answers[case] = words(variable.read_value)
                if update == "assign_add":
                    answers[f"{case} in a function"] = words(
                        tf.function(lambda v=variable: v + 0.0)
                    )
    return answers


def optimizers():
    """Optimizers with what they count, clip, average and scale."""
    import tensorflow as tf

    keras = tf.keras.optimizers
    decayed = keras.schedules.ExponentialDecay(0.5, decay_steps=1, decay_rate=0.5)
    found = {
        "clipped": keras.Adam(decayed, **clips({"global_clipnorm": 0.05})),
        "averaged": keras.AdamW(
            0.1, 0.1, use_ema=True, ema_momentum=0.5, **clips({"clipvalue": 0.01})
        ),
    }
    if not hasattr(keras.Optimizer, "apply"):
        inner = keras.SGD(0.1, momentum=0.9, clipnorm=0.02)
        found["scaled"] = tf.keras.mixed_precision.LossScaleOptimizer(
            inner, initial_scale=4.0, dynamic_growth_steps=2
        )
    return found


def clips(options):
    """Under MirroredStrategy, Keras 3 clips each replica's gradients and then sums them.

    That is another update than one process makes, and no reference (see `test_reductions`).
    """
    import tensorflow as tf

    return {} if hasattr(tf.keras.optimizers.Optimizer, "apply") else options


def trainings(strategy):
    """Weights, slots and metrics of a small model with every optimizer, and a table's."""
    with strategy.scope():
        cases = optimizers()
    answers = {}
    for case, optimizer in cases.items():
        found = training(strategy, optimizer, scales=case == "scaled")
        answers |= {f"{case} {name}": one for name, one in found.items()}
    return answers | mixed(strategy)


def mixed(strategy):
    """Weights and loss scale of a training in half precision; steps without an update are some.

    One replica's gradients overflow, as its target is large, and those of the others do not.
    """
    import tensorflow as tf

    precision = tf.keras.mixed_precision
    features = tf.constant(samples()[0], tf.float32)
    if hasattr(tf.keras.optimizers.Optimizer, "apply"):
        return {}
    precision.set_global_policy("mixed_float16")
    tf.keras.utils.set_random_seed(5)
    with strategy.scope():
        layers = [tf.keras.layers.Dense(4, "tanh"), tf.keras.layers.Dense(1, dtype="float32")]
        model = tf.keras.Sequential([tf.keras.layers.Input((3,)), *layers])
        optimizer = precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1, momentum=0.9))
    precision.set_global_policy("float32")

    def replica(step):
        own = number()
        target = tf.where((own == 3) & (step == 0), 1000.0, 1.0)
        with tf.GradientTape() as tape:
            errors = model(features[step][own], training=True) - target
            loss = optimizer.get_scaled_loss(tf.reduce_sum(errors**2) / (ROWS * REPLICAS))
        gradients = optimizer.get_unscaled_gradients(tape.gradient(loss, model.trainable_weights))
        optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))

    run = tf.function(lambda step: strategy.run(replica, args=(step,)))
    answers = {}
    for step in range(STEPS):
        run(tf.constant(step))
        answers[f"mixed scale {step}"] = np.asarray(optimizer.loss_scale.numpy())
    kept = {f"mixed {i}": np.asarray(one.numpy()) for i, one in enumerate(model.variables)}
    return answers | kept


def model_and_metrics():
    import tensorflow as tf

    tf.keras.utils.set_random_seed(5)
    table = tf.keras.layers.Embedding(5, 3)
    # Otherwise Keras 3 keeps the moving averages of each replica apart.
    apart = {"synchronized": True} if hasattr(tf.keras.optimizers.Optimizer, "apply") else {}
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(4, activation="tanh", kernel_regularizer="l2"),
            tf.keras.layers.BatchNormalization(momentum=0.5, **apart),
            tf.keras.layers.Dense(2),
        ]
    )
    model.build((None, 3))
    table.build(None)
    metrics = [
        tf.keras.metrics.Mean(),
        tf.keras.metrics.SparseCategoricalAccuracy(),
        tf.keras.metrics.AUC(num_thresholds=5),
    ]
    return model, table, metrics


def training(strategy, optimizer, *, scales):
    """What a training keeps; where it scales, one replica's gradients overflow in a step."""
    import tensorflow as tf

    features, labels = map(tf.constant, samples())
    with strategy.scope():
        model, table, metrics = model_and_metrics()
        if hasattr(optimizer, "apply"):  # Keras 3 cannot create slots in a step of several replicas
            optimizer.build([*model.trainable_variables, *table.trainable_variables])

    def replica(step):
        own = number()
        x, y = features[step][own], labels[step][own]
        rows = tf.range(own + 1)  # another number of rows for each replica
        with tf.GradientTape() as tape:
            logits = model(x, training=True) * (1.0 + tf.reduce_sum(table(rows)))
            loss = tf.keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
            metrics[0].update_state(loss)
            loss = tf.nn.compute_average_loss(loss, global_batch_size=ROWS * REPLICAS)
            loss += tf.nn.scale_regularization_loss(tf.add_n(model.losses))
            if scales:
                # The second step updates no replica.
                loss *= tf.where((step == 1) & (own == 2), float("inf"), 1.0)
                loss = optimizer.get_scaled_loss(loss)
        weights = [*model.trainable_variables, *table.trainable_variables]
        gradients = tape.gradient(loss, weights)
        if scales:
            gradients = optimizer.get_unscaled_gradients(gradients)
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
        metrics[1].update_state(y, logits)
        metrics[2].update_state(tf.one_hot(y, 2), tf.nn.softmax(logits))

    run = tf.function(lambda step: strategy.run(replica, args=(step,)))
    for step in range(STEPS):
        run(tf.constant(step))
    kept = optimizer.variables
    kept = [*model.variables, *table.variables, *(kept() if callable(kept) else kept)]
    answers = {f"{i} {one.name}": np.asarray(one.numpy()) for i, one in enumerate(kept)}
    answers["metrics"] = np.asarray([one.result().numpy() for one in metrics])
    if scales:
        answers["loss scale"] = np.asarray(optimizer.loss_scale.numpy())
    for one in metrics:
        one.reset_state()
    answers["metrics at first"] = np.asarray([one.result().numpy() for one in metrics])
    return answers


def step_of(strategy):
    """A step that updates a weight from rows of its own, and what the step keeps."""
    import tensorflow as tf

    features, labels = map(tf.constant, samples())
    rows = ROWS * strategy.num_replicas_in_sync
    with strategy.scope():
        weight = tf.Variable(tf.ones([3, 2]))
        optimizer = tf.keras.optimizers.Adam(0.1)
        optimizer.build([weight])
        total = tf.Variable(
            0.0,
            trainable=False,
            aggregation=tf.VariableAggregation.SUM,
            synchronization=tf.VariableSynchronization.ON_READ,
        )

    def update(step):
        own = number()
        with tf.GradientTape() as tape:
            loss = tf.keras.losses.sparse_categorical_crossentropy(
                labels[step][own], features[step][own] @ weight, from_logits=True
            )
            loss = tf.nn.compute_average_loss(loss, global_batch_size=rows)
        optimizer.apply_gradients(zip(tape.gradient(loss, [weight]), [weight], strict=True))
        total.assign_add(loss)

    return update, {"weight": weight, "loss": total, "steps": optimizer.iterations}


def loops(strategy):
    """Loops inside of the step and around it, with an update in each iteration."""
    import tensorflow as tf

    def looped(update, elements):
        for step in elements():
            update(step)

    answers = {}
    for kind, elements in {
        "loop": lambda: tf.range(STEPS),
        "data set": lambda: tf.data.Dataset.range(STEPS),
    }.items():
        update, kept = step_of(strategy)
        around = partial(strategy.run, update)
        tf.function(looped)(lambda step, around=around: around(args=(step,)), elements)
        answers |= {f"{kind} around the step {k}": np.asarray(v.numpy()) for k, v in kept.items()}
        if getattr(strategy.extended, "replicas_per_step", 0) == 1:
            update, kept = step_of(strategy)
            inside = tf.function(partial(looped, update, elements))
            strategy.run(inside)
            answers |= {f"{kind} in the step {k}": np.asarray(v.numpy()) for k, v in kept.items()}
    return answers


def in_job():
    """All of it under PopDistStrategy; loops and variables with one replica for each instance."""
    import tensorflow as tf

    from popdist_tf.ipu.distributed.ipu_horovod_strategy import IPUHorovodStrategy
    from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy

    strategy = PopDistStrategy()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        single = IPUHorovodStrategy()
    try:
        strategy.run(tf.function(loop_in_a_step))
    except ValueError as error:
        refused = str(error)
    return {
        **in_words(REPLICAS, variables(strategy), trainings(strategy), loops(strategy)),
        **in_words(REPLICAS // 2, variables(single), loops(single)),
        "refused": refused,
        "idle": [text for one in caught if "PD429" in (text := str(one.message))],
        "local": apart_within_instances(strategy),
    }


def apart_within_instances(strategy):
    """The error of a step after which local replicas differ, alike on all instances."""
    import tensorflow as tf

    with strategy.scope():
        equal = tf.Variable([1.0, 2.0], name="equal")
        apart = tf.Variable([1.0, 2.0], name="apart")

    def step():
        equal.assign_add([1.0, 1.0])
        apart.assign_add(tf.cast([number() % strategy.extended.replicas_per_step, 0], tf.float32))

    try:
        tf.function(lambda: strategy.run(step))()
    except tf.errors.InvalidArgumentError as error:
        return str(error)
    return "no error"


def callbacks_with_one_place(folder):
    """Keras' callbacks that write, with the same paths on all instances."""
    import tensorflow as tf

    import popdist
    from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy

    keras = tf.keras
    rng = np.random.default_rng(popdist.getInstanceIndex())
    x = rng.normal(size=(32, 2)).astype(np.float32)
    with PopDistStrategy().scope():
        model = keras.Sequential([keras.layers.Dense(1, input_shape=(2,))])
        model.compile("adam", "mse")
    ending = ".weights.h5" if hasattr(keras.optimizers.Optimizer, "apply") else ""
    callbacks = [
        keras.callbacks.ModelCheckpoint(f"{folder}/model.h5"),
        keras.callbacks.ModelCheckpoint(f"{folder}/model.keras"),
        keras.callbacks.ModelCheckpoint(
            f"{folder}/weights/{{epoch}}{ending}", save_weights_only=True
        ),
        # TensorFlow 2.21 comes without TensorBoard.
        *[keras.callbacks.TensorBoard(f"{folder}/board")] * (find_spec("tensorboard") is not None),
        keras.callbacks.CSVLogger(f"{folder}/log{popdist.getInstanceIndex()}.csv"),
    ]
    model.fit(x, x.sum(1), batch_size=8, epochs=2, verbose=0, callbacks=callbacks)
    answers = {"weights": np.concatenate([one.ravel() for one in model.get_weights()])}
    return answers | resumed(f"{folder}/backup", x)


def resumed(folder, x):
    """Weights of a training that breaks off after an epoch and goes on, and of a whole one."""
    import tensorflow as tf

    from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy

    def break_off(epoch, _):
        if epoch == 1:
            raise InterruptedError

    broken = tf.keras.callbacks.LambdaCallback(on_epoch_end=break_off)
    backup = tf.keras.callbacks.BackupAndRestore
    answers = {}
    for name, runs in (("whole", [[]]), ("resumed", [[backup(folder), broken], [backup(folder)]])):
        for callbacks in runs:
            tf.keras.utils.set_random_seed(2)
            with PopDistStrategy().scope():
                model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
                model.compile(tf.keras.optimizers.Adam(0.1), "mse")
            options = {"batch_size": 8, "epochs": 3, "verbose": 0, "shuffle": False}
            with contextlib.suppress(InterruptedError):
                history = model.fit(x, x.sum(1), callbacks=callbacks, **options)
        answers[name] = np.concatenate([one.ravel() for one in model.get_weights()])
        answers[f"{name} epochs"] = len(history.history["loss"])
    return answers


def loop_in_a_step():
    import tensorflow as tf

    for _ in tf.range(2):
        tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(1.0))


def in_cluster():
    """The same under the strategy over gRPC, and how a step ends that makes weights differ."""
    import tensorflow as tf

    from popdist_tf.ipu.ipu_multi_worker_strategy import IPUMultiWorkerStrategy

    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = IPUMultiWorkerStrategy(cluster)
    answers = in_words(REPLICAS // 2, variables(strategy), loops(strategy))
    with strategy.scope():
        weight = tf.Variable([1.0, 2.0], name="apart")
        optimizer = tf.keras.optimizers.SGD(0.1)
        optimizer.build([weight])
        optimizer.learning_rate.assign(0.1 * (1 + cluster.task_id))
    try:
        step = tf.function(lambda: optimizer.apply_gradients([(tf.ones(2), weight)]))
        strategy.run(step)
    except tf.errors.InvalidArgumentError as error:
        answers["apart"] = str(error)
    answers["same rows"] = of_closures(strategy)
    return answers


def of_closures(strategy):
    """Warnings of steps that take their rows themselves, the same on all workers."""
    import tensorflow as tf

    rows = iter(tf.data.Dataset.from_tensor_slices(samples()[0][:, 0]))
    with strategy.scope():
        weight = tf.Variable(tf.ones([3, 5]))
        optimizer = tf.keras.optimizers.SGD(0.1)
        optimizer.build([weight])

    def update():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((next(rows) @ weight) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, [weight]), [weight], strict=True))

    step = tf.function(lambda: strategy.run(update))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            step()
    return [text for one in caught if "PD418" in (text := str(one.message))]


def alone(count):
    """What TensorFlow's own strategy computes in one process."""
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    devices = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
    tf.config.set_logical_device_configuration(cpu, devices)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)])
    trained = trainings(strategy) if count == REPLICAS else {}
    return in_words(count, variables(strategy), trained, loops(strategy))


def in_words(replicas, *answers):
    return {f"{replicas}: {name}": one for found in answers for name, one in found.items()}


@pytest.fixture(scope="module")
def half():
    return run_job(alone, instances=1, timeout=300, count=REPLICAS // 2)[0]


@pytest.fixture(scope="module")
def whole():
    return run_job(alone, instances=1, timeout=300, count=REPLICAS)[0]


@pytest.fixture(scope="module")
def ranks():
    return run_job(in_job, replicas=REPLICAS, timeout=300)


@pytest.fixture(scope="module")
def workers():
    return run_job(in_cluster, options=["--tf-config=yes"], timeout=300)


def compare(ranks, expected):
    compared = 0
    for name, value in expected.items():
        is_variable = isinstance(value, (float, str))
        if is_variable and " NONE " in name and "ON_READ" not in name:
            continue  # each replica keeps its own value, which PD416 says
        compared += 1
        for rank in ranks:
            if is_variable:
                assert rank[name] == value, name
            else:
                np.testing.assert_array_equal(rank[name], ranks[0][name], err_msg=name)
                np.testing.assert_allclose(rank[name], value, rtol=2e-5, atol=2e-6, err_msg=name)
    return compared


# Each test sets up one job at most, as pytest limits the time of a test.


def test_loops_in_a_step_update_as_loops_around_it(ranks):
    for rank in ranks:
        for case in ("loop in the step", "data set in the step"):
            for what in ("weight", "loss", "steps"):
                name = f"{REPLICAS // 2}: {case} {what}"
                around = name.replace(case, "loop around the step")
                np.testing.assert_array_equal(rank[name], rank[around])
                np.testing.assert_array_equal(rank[name], ranks[0][name])
        assert "[PD417]" in rank["refused"]
        (idle,) = rank["idle"]
        assert "IPUHorovodStrategy runs one replica in each process" in idle
        assert "this one was started for 2: an update takes the data of 2 replicas" in idle


def test_one_replica_for_each_instance_keeps_what_one_process_has(ranks, half):
    assert compare(ranks, half) == (3 + 4) * 3 + 2 * 3


def test_several_replicas_for_each_instance_keep_what_one_process_has(ranks, whole):
    # Variables, loops, and the state of two or three optimizers with their models and metrics.
    assert compare(ranks, whole) > (3 + 4) * 3 + 2 * 3 + 40
    # The step in which one replica overflows halves the loss scale; Keras 3 is left out there.
    assert {float(value) for name, value in whole.items() if "mixed scale" in name} <= {2.0**14}


def test_local_replicas_that_a_step_makes_different_stop_the_training(ranks):
    for rank in ranks:
        assert "[PD007] the instances hold different weights after the first step" in rank["local"]
        named = rank["local"].split("weights that differ")[1]
        assert "apart" in named
        assert "equal" not in named


def test_a_cluster_keeps_what_one_process_has(workers, half):
    assert compare(workers, half) == (3 + 4) * 3 + 2 * 3
    for worker in workers:
        assert "[PD007]" in worker["apart"]
        assert "apart" in worker["apart"].split("weights that differ")[1]
    ((said,), nothing) = (worker["same rows"] for worker in workers)
    assert "[PD418] all 2 instances train on the same rows" in said
    assert nothing == []


def test_callbacks_of_all_instances_write_to_one_place(tmp_path):
    import tensorflow as tf

    first, second = run_job(callbacks_with_one_place, folder=str(tmp_path), timeout=300)
    np.testing.assert_array_equal(first["weights"], second["weights"])
    for rank in (first, second):
        assert (rank["whole epochs"], rank["resumed epochs"]) == (3, 1)
        np.testing.assert_array_equal(rank["resumed"], first["whole"])
    is_keras_3 = hasattr(tf.keras.optimizers.Optimizer, "apply")
    for name in ("model.h5", "model.keras"):
        # Keras 3 cannot read the loss "mse" from an h5 file that it has written.
        read = tf.keras.models.load_model(tmp_path / name, compile=not is_keras_3).get_weights()
        np.testing.assert_array_equal(np.concatenate([w.ravel() for w in read]), first["weights"])
    ending = ".weights.h5" if is_keras_3 else ".index"
    written = (tmp_path / "weights").glob(f"*{ending}")
    assert sorted(path.name for path in written) == [f"1{ending}", f"2{ending}"]
    # Nobody leaves the folders that the second instance has for what is not kept.
    assert not list(tmp_path.rglob("*temp*"))


def untrained(kind, folder=None):
    """The untrained state of a model at each epoch, and slots at the end, of one rank."""
    import numpy as np
    import tensorflow as tf

    import popdist_tf.keras as hvd

    hvd.init()
    rows = batches_of_ranks()[hvd.rank()]
    layers = [tf.keras.layers.Input((3,)), tf.keras.layers.BatchNormalization(momentum=0.5)]
    model = tf.keras.Sequential([*layers, tf.keras.layers.Dense(1)])
    kinds = tf.keras.optimizers
    optimizer = (kinds.legacy if kind == "legacy" else kinds).SGD(0.01, momentum=0.9)
    model.compile(hvd.DistributedOptimizer(optimizer), "mse")
    saved = []
    save = tf.keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: saved.append([one.tolist() for one in model.get_weights()])
    )
    data = tf.data.Dataset.from_tensor_slices((rows, rows.sum(axis=-1)))
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), save]
    if folder:
        layer = model.layers[0]
        save.on_train_batch_end = lambda *_, **__: saved.append(float(layer.moving_mean[0]))
        if hvd.rank() == 0:
            path = f"{folder}/{{epoch}}-{{batch}}.weights.h5"
            checkpoint = tf.keras.callbacks.ModelCheckpoint(
                path, save_weights_only=True, save_freq=3
            )
            callbacks.append(checkpoint)
    model.fit(data, epochs=2, verbose=0, callbacks=callbacks)
    held = model.optimizer.variables
    slots = [np.asarray(one).tolist() for one in (held() if callable(held) else held)]
    mean = model.layers[0].moving_mean
    return {"saved": saved, "slots": slots, "mean": np.asarray(mean).tolist()}


def batches_of_ranks():
    """Rows of two ranks: shape (rank, batches, rows, 3)."""
    rng = np.random.default_rng(5)
    shift = np.array([0, 4])[:, None, None, None]
    return (rng.normal(size=(2, 4, 8, 3)) + shift).astype(np.float32)


def untrained_each(folder):
    kinds = ["new", *["legacy"] * (find_spec("tensorflow_estimator") is not None)]
    return {**{kind: untrained(kind) for kind in kinds}, "saving": untrained("new", folder)}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("saving")


@pytest.fixture(scope="module")
def states(place):
    return run_job(untrained_each, folder=str(place), timeout=300)


@pytest.mark.parametrize("kind", ["new", "legacy"])
def test_untrained_state_is_the_mean_over_the_ranks_where_it_is_saved(states, kind):
    if kind == "legacy" and find_spec("tensorflow_estimator") is None:
        pytest.skip("Keras 3 has one kind of optimizers")
    first, second = (state[kind] for state in states)
    assert first == second
    expected = np.zeros(3)
    for _ in range(2):
        own = []
        for rows in batches_of_ranks():
            mean = expected
            for batch in rows:
                mean = 0.5 * mean + 0.5 * batch.mean(axis=0, dtype=np.float64)
            own.append(mean)
        expected = np.mean(own, axis=0)
    np.testing.assert_allclose(first["mean"], expected, rtol=1e-5)


def test_state_is_equal_in_the_steps_in_which_one_rank_saves(states, place):
    """Every third batch: the third of the first epoch, and the second of the next."""
    first, second = (state["saving"] for state in states)
    assert len(list(place.iterdir())) == 2
    assert first["mean"] == second["mean"]
    own = np.zeros((2, 3))
    # What each rank has after a batch, and the weights that are noted after an epoch.
    expected = [[], []]
    for synchronized in (2, 1):
        for number in range(4):
            batches = batches_of_ranks()[:, number].astype(np.float64)
            own = 0.5 * own + 0.5 * batches.mean(axis=1)
            if number == synchronized:
                own[:] = own.mean(axis=0)
            for rank in range(2):
                expected[rank].append(own[rank, 0])
        own[:] = own.mean(axis=0)
    for answer, values in zip((first, second), expected, strict=True):
        found = [one for one in answer["saved"] if isinstance(one, float)]
        np.testing.assert_allclose(found, values, rtol=1e-5)
