"""`popdist_tf.shard`, warm-up, backups and bars of `fit`, against plain Keras in one process."""

from pathlib import Path

import numpy as np
import pytest

from tests.distributed.jobs import run_job

ROWS, GLOBAL, EPOCHS = 40, 8, 2
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(ROWS, 1)).astype(np.float32)


def model(tf, optimizer):
    made = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])
    made.build((None, 3))
    made.compile(optimizer, "mse")
    return made


def error_of(function, *args, **kwargs):
    try:
        list(function(*args, **kwargs))
    except Exception as error:  # noqa: BLE001 - the test asks for it
        return f"{type(error).__name__}: {error}"
    return "no error"


def shuffled(tf):
    # Keras 3 makes more iterators with a strategy than without, each of which shuffles anew.
    anew = tf.__version__ < "2.16"
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    return data.shuffle(ROWS, seed=3, reshuffle_each_iteration=anew).batch(GLOBAL)


def under_a_strategy():
    import tensorflow as tf

    import popdist_tf
    from popdist_tf.ipu.distributed import popdist_strategy

    strategy = popdist_strategy.PopDistStrategy()
    with strategy.scope():
        made = model(tf, tf.keras.optimizers.SGD(0.1, momentum=0.9))
    steps = made.fit(popdist_tf.shard(shuffled(tf)), epochs=EPOCHS, verbose=0).params["steps"]
    found = {"shuffled": made.get_weights()[0], "steps": steps}
    made.fit(popdist_tf.shard((X, Y), batch_size=GLOBAL), verbose=0)
    data = tf.data.Dataset.from_tensor_slices(X)
    unknown = data.batch(6).map(lambda x: x)
    return found | {
        "arrays": made.get_weights()[0],
        "rest": error_of(popdist_tf.shard, data.batch(7, drop_remainder=True)),
        "rest when read": error_of(popdist_tf.shard, unknown),
        "order": error_of(popdist_tf.shard, data.shuffle(9).batch(8).prefetch(1)),
    }


def alone():
    import tensorflow as tf

    made = model(tf, tf.keras.optimizers.SGD(0.1, momentum=0.9))
    made.fit(shuffled(tf), epochs=EPOCHS, verbose=0)
    found = {"shuffled": made.get_weights()[0]}
    made.fit(X, Y, batch_size=GLOBAL, shuffle=False, verbose=0)
    return found | {"arrays": made.get_weights()[0]}


@pytest.fixture(scope="module")
def expected():
    (answer,) = run_job(alone, instances=1)  # this process may have seeded TensorFlow
    return answer


@pytest.mark.parametrize("replicas", [2, 4])
def test_an_epoch_of_shards_is_that_of_one_process(replicas, expected):
    answers = run_job(under_a_strategy, replicas=replicas)
    for answer in answers:
        for name, value in expected.items():
            np.testing.assert_allclose(answer[name], value, rtol=1e-5, atol=1e-6)
        assert answer["steps"] * replicas // 2 == ROWS // GLOBAL * replicas // 2
        assert answer["rest"].startswith("StrategyError: [PD437] a global batch cannot be divided")
        assert f"a multiple of {replicas} rows" in answer["rest"]
        assert "[PD437] a data set is shuffled without a seed" in answer["order"]
    if replicas == 4:  # 6 rows, whose number is known when they are read
        assert all("[PD437] a batch cannot be divided" in one["rest when read"] for one in answers)


def in_the_style_of_horovod():
    import tensorflow as tf

    import popdist_tf
    import popdist_tf.keras as hvd

    hvd.init()
    made = model(tf, hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)))
    rates = []

    class Noted(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            del batch, logs
            rates.append(float(self.model.optimizer.learning_rate))

    warm = hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.1, warmup_epochs=2, verbose=1)
    late = hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5, start_epoch=2)
    data = popdist_tf.shard((X, Y), batch_size=GLOBAL)
    logged = made.fit(data, epochs=3, verbose=0, callbacks=[warm, late, Noted()]).history["lr"]
    return {"rates": rates, "logged": logged, "weights": made.get_weights()[0]}


def test_a_learning_rate_is_warmed_up_from_that_of_one_process():
    """The published ramp: from a step above the rate of one rank to that of all."""
    import tensorflow as tf

    answers = run_job(in_the_style_of_horovod)
    steps, size = ROWS // GLOBAL, 2
    ramp = [0.1 / size * (((step + 1) / steps) * (size - 1) / 2 + 1) for step in range(2 * steps)]
    rates = [*ramp, *[0.05] * steps]
    made = model(tf, tf.keras.optimizers.SGD(0.1))
    for step, rate in enumerate(rates):
        made.optimizer.learning_rate.assign(rate)
        part = slice(step % steps * GLOBAL, (step % steps + 1) * GLOBAL)
        made.train_on_batch(X[part], Y[part])
    for answer in answers:
        np.testing.assert_allclose(answer["rates"], rates, rtol=1e-5)
        np.testing.assert_allclose(answer["weights"], made.get_weights()[0], rtol=1e-5, atol=1e-6)
        assert len(answer["logged"]) == 3


def resumed(folder, stops):
    import tensorflow as tf

    import popdist
    import popdist_tf
    from popdist_tf.ipu.distributed import popdist_strategy

    class Stop(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            del logs
            if stops and epoch == 1:
                raise RuntimeError("stopped")

    with popdist_strategy.PopDistStrategy().scope():
        made = model(tf, tf.keras.optimizers.SGD(0.1, momentum=0.9))
    own = folder.format(rank=popdist.getInstanceIndex())
    saved = f"{own}/saved.weights.h5"
    callbacks = [
        tf.keras.callbacks.BackupAndRestore(f"{own}/backup"),
        tf.keras.callbacks.ModelCheckpoint(saved, save_weights_only=True),
        Stop(),
    ]
    try:
        data = popdist_tf.shard((X, Y), batch_size=GLOBAL)
        epochs = made.fit(data, epochs=4, verbose=0, callbacks=callbacks).epoch
    except RuntimeError as error:
        return {"error": str(error)}
    return {"epochs": epochs, "weights": made.get_weights()[0]}


@pytest.mark.parametrize(("folder", "ranks"), [("one", 2), ("of{rank}", 2), ("alone", 1)])
def test_a_backup_in_one_folder_or_one_for_each_instance_is_resumed(tmp_path, folder, ranks):
    import tensorflow as tf

    place = str(tmp_path / folder)
    first = run_job(resumed, instances=ranks, folder=place, stops=True)
    assert [one["error"] for one in first] == ["stopped"] * ranks
    answers = run_job(resumed, instances=ranks, folder=place, stops=False)
    made = model(tf, tf.keras.optimizers.SGD(0.1, momentum=0.9))
    made.fit(X, Y, batch_size=GLOBAL, shuffle=False, verbose=0, epochs=4)
    expected = made.get_weights()[0]
    for answer in answers:
        assert answer["epochs"] == [2, 3]
        np.testing.assert_allclose(answer["weights"], expected, rtol=1e-5, atol=1e-6)
    saved = place.format(rank=0)
    made.load_weights(f"{saved}/saved.weights.h5")
    np.testing.assert_allclose(made.get_weights()[0], expected, rtol=1e-5, atol=1e-6)
    assert Path(saved).is_dir()


def failing(read):
    import tensorflow as tf

    import popdist_tf
    from popdist_tf.ipu.distributed import popdist_strategy

    class Refusing(tf.keras.layers.Dense):
        def call(self, inputs):
            popdist_tf.shard(tf.data.Dataset.range(9).batch(9, drop_remainder=True))
            return super().call(inputs)

    layer = Refusing(1) if read == "layer" else tf.keras.layers.Dense(1)
    with popdist_strategy.PopDistStrategy().scope():
        made = tf.keras.Sequential([layer])
        made.compile("sgd", "mse")
    if read == "layer":  # in a function, and a layer of Keras
        return error_of(made.fit, X, Y, verbose=0)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(7)  # and a rest of 5
    return error_of(made.fit, popdist_tf.shard(data), verbose=0)


def shown_and_failing():
    return {**shown(), **{read: failing(read) for read in ("data", "layer")}}


@pytest.fixture(scope="module")
def answers():
    return run_job(shown_and_failing)


@pytest.mark.parametrize("read", ["data", "layer"])
def test_errors_arrive_as_themselves(answers, read):
    for answer in answers:
        assert answer[read].startswith("StrategyError: [PD437] "), answer[read]
        assert "Graph execution error" not in answer[read]


def shown():
    import contextlib
    import io

    import tensorflow as tf

    import popdist_tf
    from popdist_tf.ipu.distributed import popdist_strategy

    with popdist_strategy.PopDistStrategy().scope():
        made = model(tf, "sgd")
    data = popdist_tf.shard((X, Y), batch_size=GLOBAL)
    found = {}
    for name, settings in (("auto", {}), ("asked", {"verbose": 2})):
        written = io.StringIO()
        with contextlib.redirect_stdout(written):
            made.fit(data, **settings)
        found[name] = "loss" in written.getvalue()
    return found


def test_bars_are_those_of_instance_0(answers):
    assert [one["auto"] for one in answers] == [True, False]
    assert [one["asked"] for one in answers] == [True, True]
