"""Keras programs whose ranks hold models of their own: equal weights, on Keras 2 and on Keras 3."""

import time
import warnings
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest

from tests.distributed.jobs import LAUNCHER, ROOT, run_command, run_job
from tests.distributed.warm import python

BATCH = 8
STEPS = 4
EPOCHS = 2
EXAMPLES = ROOT / "examples"
FEW_EPOCHS = "--epochs=6"  # enough for the accuracy that the examples ask for


def data(rank):
    rng = np.random.default_rng([3, rank])
    words = rng.integers(0, 20, size=(STEPS * BATCH, 5))
    return words, rng.integers(0, 3, size=len(words))


def network(seed):
    import tensorflow as tf

    tf.keras.utils.set_random_seed(seed)
    return tf.keras.Sequential(
        [
            tf.keras.layers.Input((5,), dtype="int32"),
            tf.keras.layers.Embedding(20, 4),  # its gradient is sparse
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(8, activation="tanh"),
            tf.keras.layers.Dense(3),
        ]
    )


def compiled(model, optimizer, **settings):
    import tensorflow as tf

    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], **settings)
    return model


def built(optimizer, model):
    """An optimizer with its variables: else the first step creates them, and is traced twice."""
    optimizer.build(model.trainable_variables)
    return optimizer


def fitted(model, samples, batch, callbacks=()):
    history = model.fit(
        *samples, batch_size=batch, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=callbacks
    ).history
    return {
        **{f"weight{i}": w for i, w in enumerate(model.get_weights())},
        **{f"slot{i}": np.asarray(v) for i, v in enumerate(model.optimizer.variables)},
        **{name: np.asarray(values) for name, values in history.items()},
    }


def measured(optimizer, rows, batch, callbacks=()):
    """Metrics of a training and of its validation, which are no means over batches."""
    import tensorflow as tf

    def largest(_, scores):  # of the program: a mean over rows
        return tf.reduce_max(scores, -1)

    words, labels = rows
    hot = np.eye(3, dtype=np.float32)[np.minimum(labels, words[:, 0] % 3)]  # unequal classes
    kinds = tf.keras.metrics
    model = network(seed=0)
    model.compile(
        optimizer,
        tf.keras.losses.CategoricalCrossentropy(from_logits=True),
        metrics=[
            kinds.AUC(num_thresholds=7, from_logits=True, name="auc"),
            kinds.Precision(0.1, name="precision"),
            kinds.Recall(0.1, name="recall"),
            kinds.F1Score(average=None, name="f1"),
            kinds.OneHotMeanIoU(3, name="iou"),
            kinds.TopKCategoricalAccuracy(2, name="top"),
            kinds.RootMeanSquaredError(name="rmse"),
            largest,
        ],
    )
    history = model.fit(
        words,
        hot,
        batch_size=batch,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
        validation_data=(words[::-1][: 2 * batch], hot[::-1][: 2 * batch]),
    ).history
    return {f"measured {name}": np.asarray(values) for name, values in history.items()}


def error_of(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - the test asks for it
        return str(error)
    return "no error"


def in_job():
    import tensorflow as tf

    import popdist_tf.keras as hvd

    hvd.init()
    rank = hvd.rank()
    adam = tf.keras.optimizers.Adam
    model = network(seed=rank)  # every rank starts elsewhere
    if rank == 1:
        # Names of layers and optimizers count on, on this rank alone.
        tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1)])
        adam()
    optimizer = hvd.DistributedOptimizer(adam(0.01, clipnorm=1.0))
    compiled(model, optimizer, steps_per_execution=2)
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ]
    answers, said = with_warnings(fitted, model, data(rank), BATCH, callbacks)
    answers["own rows"] = of_equal_rows(said)
    answers["twice"] = error_of(hvd.DistributedOptimizer, optimizer)

    answers |= measured(hvd.DistributedOptimizer(adam(0.05)), data(rank), BATCH, callbacks) | {
        **two_optimizers(hvd.DistributedOptimizer, data(rank), BATCH, callbacks),
    }

    # The same without the broadcast trains two models.
    diverging = compiled(network(seed=rank), hvd.DistributedOptimizer(adam()))
    answers["divergence"] = error_of(fitted, diverging, data(rank), BATCH)

    unequal = compiled(network(seed=0), hvd.DistributedOptimizer(adam()))
    samples = [part[: BATCH * (STEPS - rank)] for part in data(rank)]
    answers["steps"] = error_of(fitted, unequal, samples, BATCH, callbacks[:1])

    jitted = compiled(network(seed=0), hvd.DistributedOptimizer(adam()), jit_compile=True)
    answers["jit"] = error_of(fitted, jitted, data(rank), BATCH)

    mixed = tf.keras.mixed_precision.LossScaleOptimizer
    outer = compiled(network(seed=0), hvd.DistributedOptimizer(mixed(adam())))
    answers["loss scaling"] = error_of(fitted, outer, data(rank), BATCH, callbacks)
    inner = compiled(network(seed=0), mixed(hvd.DistributedOptimizer(adam())))
    answers["inner"] = error_of(fitted, inner, data(rank), BATCH)

    endless = compiled(network(seed=0), hvd.DistributedOptimizer(adam()))
    batches = tf.data.Dataset.from_tensor_slices(data(rank)).batch(BATCH).filter(lambda *_: True)
    answers["unknown length"] = error_of(
        endless.fit, batches, epochs=EPOCHS, verbose=0, callbacks=callbacks
    )
    answers["unequal"] = error_of(
        endless.fit, batches.take(STEPS - rank), verbose=0, callbacks=callbacks
    )

    endless.set_weights(network(seed=0).get_weights())
    answers["without callbacks"] = error_of(endless.fit, batches.take(STEPS - rank), verbose=0)

    known = batches.apply(tf.data.experimental.assert_cardinality(STEPS))
    answers |= left_early(endless, known, rank)
    fresh = compiled(network(seed=0), hvd.DistributedOptimizer(adam()))
    answers |= on_the_same_rows(fresh, endless)

    unwrapped = compiled(network(seed=0), adam())
    answers["unwrapped"], answers["warned"] = with_warnings(
        error_of, fitted, unwrapped, data(rank), BATCH, callbacks
    )

    answers["Horovod's own"] = with_horovods_own(adam(), data(rank), callbacks)
    answers["keras"] = 3 if hasattr(adam, "apply") else 2

    loop = tf.Variable([1.0 + rank])
    answers["check"] = error_of(hvd.check_weights, [loop], "in a loop")
    hvd.broadcast_variables([loop])
    answers["checked"] = error_of(hvd.check_weights, [loop, ("array", np.ones(3))])

    answers |= of_both_ways(hvd.DistributedOptimizer, nullcontext, rank)

    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        nested = compiled(network(seed=0), hvd.DistributedOptimizer(adam()))
    answers["nested"] = error_of(fitted, nested, data(rank), BATCH)
    return answers


def two_optimizers(wrap, samples, batch, callbacks=()):
    """Weights that a step updates by two optimizers, neither of which ``compile`` knows."""
    import tensorflow as tf

    class Two(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.whole = network(seed=0)
            self.deciding = [
                wrap(tf.keras.optimizers.Adam(0.01)),
                wrap(tf.keras.optimizers.SGD(1.0)),
            ]
            self.loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        def call(self, words):
            return self.whole(words)

        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = self.loss_of(data[1], self(data[0]))
            weights = self.whole.trainable_variables
            pairs = list(zip(tape.gradient(loss, weights), weights, strict=True))
            # The last layer's gradients are known first, and have names of their own.
            self.deciding[0].apply_gradients(pairs[:-2])
            self.deciding[1].apply_gradients(pairs[-2:])
            return {"loss": loss}

    model = Two()
    model.compile()
    _, said = with_warnings(
        model.fit, *samples, batch_size=batch, shuffle=False, verbose=0, callbacks=callbacks
    )
    answers = {f"two {i}": weight for i, weight in enumerate(model.get_weights())}
    return answers | {"two warned": [text for text in said if "PD436" in text]}


def with_horovods_own(optimizer, samples, callbacks):
    """The error of Horovod's wrapper: it reduces with Keras 2, and Keras 3 calls other methods."""
    import horovod.tensorflow.keras

    model = compiled(network(seed=0), horovod.tensorflow.keras.DistributedOptimizer(optimizer))
    return error_of(fitted, model, samples, BATCH, callbacks)


def left_early(model, batches, instance):
    """Errors of trainings that one instance, or each, ends in the middle of an epoch."""
    import tensorflow as tf

    def stop_on(instances):
        def stop(batch, logs):
            del logs
            if batch == 1 and instance in instances:
                model.stop_training = True

        return tf.keras.callbacks.LambdaCallback(on_train_batch_end=stop)

    weights = model.get_weights()
    answers = {}
    for case, instances in {"one leaves": [1], "all leave": [0, 1]}.items():
        callbacks = [stop_on(instances)]
        answers[case] = error_of(model.fit, batches, verbose=0, callbacks=callbacks)
        model.set_weights(weights)
    return answers


def on_the_same_rows(fresh, model):
    """Warnings where all instances have the same batches, and the same arrays."""
    import tensorflow as tf

    batches = tf.data.Dataset.from_tensor_slices(data(0)).batch(BATCH)
    return {
        "same batches": of_equal_rows(with_warnings(fresh.fit, batches, verbose=0)[1]),
        "same arrays": of_equal_rows(with_warnings(model.fit, *data(0), verbose=0)[1]),
    }


def of_both_ways(distributed, scope, instance):
    """What is asked of the wrapper and of a strategy."""
    return {
        **masked(distributed, scope, [instance]),
        **means(distributed, scope, instance),
        **lone_calls(distributed, scope, instance),
        **adapted(distributed, scope, instance),
    }


def adapted(distributed, scope, instance):
    """Errors and warnings of models and data whose layers adapt to some data."""
    import tensorflow as tf

    own = np.random.default_rng(instance).normal(instance, 1, size=(8, 2)).astype(np.float32)
    words = ["a b b"] if instance else ["c c a"]

    def fit(samples, text):
        lookup = tf.keras.layers.TextVectorization()
        if text is not None:
            lookup.adapt(text)
        with scope():
            normal = tf.keras.layers.Normalization(input_shape=(2,))
            if samples is not None:
                normal.adapt(samples)
            model = tf.keras.Sequential([normal, tf.keras.layers.Dense(1)])
            model.compile(built(distributed(tf.keras.optimizers.SGD(0.1)), model), "mse")
        model.fit(own, own[:, :1], batch_size=4, verbose=0)

    cases = {
        "same": (own * 0 + np.arange(2), ["a b"]),
        "own samples": (own, ["a b"]),
        "own words": (None, words),
        "words of one": (None, None if instance else words),
    }
    if scope is nullcontext:  # a strategy's scope compares variables, which `adapt` makes
        cases["samples of one"] = (None if instance else own * 0 + 1, None)
    answers = {}
    for case, given in cases.items():
        answers[f"{case} adapted"], said = with_warnings(error_of, fit, *given)
        answers[f"{case} adapted warned"] = [text for text in said if "PD430" in text]
    return answers


def lone_calls(distributed, scope, instance):
    """Errors of trainings before which one instance alone makes a call."""
    import tensorflow as tf

    samples = data(instance)
    calls = {
        "predict": lambda model: model.predict(samples[0], verbose=0),
        "evaluate": lambda model: model.evaluate(*samples, verbose=0),
        "train_on_batch": lambda model: model.train_on_batch(*(one[:BATCH] for one in samples)),
    }

    def then_fit(call):
        with scope():
            model = network(seed=0)
            compiled(model, built(distributed(tf.keras.optimizers.SGD(0.1)), model))
        if instance == 0:
            call(model)
        model.fit(*samples, batch_size=BATCH, verbose=0)

    return {f"lone {name}": error_of(then_fit, call) for name, call in calls.items()}


def with_warnings(function, *args, **kwargs):
    """What a function returns, and the warnings of this adapter."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer = function(*args, **kwargs)
    return answer, [text for one in caught if "PD4" in (text := str(one.message))]


def of_equal_rows(texts):
    return [text for text in texts if "PD418" in text]


def masked(distributed, scope, instances):
    """Weights and warnings of models whose losses leave out padding, and labels.

    The first instance's sequences are shorter, and more of its labels are left out.
    """
    import tensorflow as tf

    def rows(instance):
        rng = np.random.default_rng([5, instance])
        steps = rng.normal(size=(STEPS, BATCH, 6, 2)).astype(np.float32)
        length = 1 + np.arange(BATCH) % 3 + 3 * instance
        steps[:, np.arange(6)[None] >= length[:, None]] = 0
        labels = rng.integers(0, 3, size=(STEPS, BATCH))
        labels[:, 2 + 5 * instance :] = -1
        return steps, steps.sum(-1, keepdims=True) + 1, labels

    parts = zip(*map(rows, instances), strict=True)
    steps, sums, labels = (
        one.reshape(-1, *one.shape[2:]) for one in (np.concatenate(part, axis=1) for part in parts)
    )
    layers, losses = tf.keras.layers, tf.keras.losses
    ignoring = losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    tf.keras.utils.set_random_seed(2)  # from which Keras 3 seeds layers when they are created
    recurrent = [layers.Masking(), layers.SimpleRNN(3, return_sequences=True)]
    cases = {
        "padding": (recurrent, layers.Dense(1), "mse", sums),
        "labels": ([layers.Flatten()], layers.Dense(3), ignoring, labels),
    }
    answers = {}
    for case, (first, last, loss, targets) in cases.items():
        tf.keras.utils.set_random_seed(2)
        with scope():
            model = tf.keras.Sequential([layers.Input((6, 2)), *first, last])
            model.compile(distributed(tf.keras.optimizers.SGD(0.1)), loss)
        _, answers[f"{case} masked warned"] = with_warnings(
            model.fit, steps, targets, batch_size=BATCH * len(instances), shuffle=False, verbose=0
        )
        weights = np.concatenate([one.ravel() for one in model.get_weights()])
        answers[f"{case} masked"] = weights
    return answers


def means(distributed, scope, instance):
    """Warnings of trainings whose gradients are not those of the mean over the global batch."""
    import tensorflow as tf

    class DividedStep(tf.keras.Sequential):
        def train_step(self, batch):
            with tf.GradientTape() as tape:
                squares = (self(batch[0], training=True) - batch[1]) ** 2
                loss = tf.nn.compute_average_loss(squares[:, 0], global_batch_size=2 * BATCH)
            trained = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained, strict=True))
            return {"loss": loss}

    def fit(kind=tf.keras.Sequential, loss="mse", rows=2 * BATCH, way="arrays"):
        with scope():
            model = kind([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1)])
            model.compile(built(distributed(tf.keras.optimizers.SGD(0.1)), model), loss)
        own = np.random.default_rng(instance).normal(size=(rows, 2)).astype(np.float32)
        if way == "batches":
            for begin in (0, BATCH):
                part = own[begin : begin + BATCH]
                model.train_on_batch(part, part[:, :1])
        elif way == "data set":
            pairs = tf.data.Dataset.from_tensor_slices((own, own[:, :1]))
            model.fit(pairs.batch(BATCH), epochs=2, verbose=0)
        else:
            model.fit(own, own[:, :1], batch_size=BATCH, verbose=0)

    cases = {
        "plain": {},
        "sum": {"loss": tf.keras.losses.MeanSquaredError(reduction="sum")},
        "unequal": {"rows": 2 * BATCH - instance},
        "unequal last": {"rows": 2 * BATCH - instance, "way": "data set"},
        "equal last": {"rows": 2 * BATCH - 1, "way": "data set"},
        "unequal call": {"rows": 2 * BATCH - instance, "way": "batches"},
        "unequal sum": {
            "rows": 2 * BATCH - instance,
            "way": "data set",
            "loss": tf.keras.losses.MeanSquaredError(reduction="sum"),
        },
        "unequal divided step": {
            "rows": 2 * BATCH - instance,
            "way": "data set",
            "kind": DividedStep,
        },
    }
    found = {case: with_warnings(fit, **given)[1] for case, given in cases.items()}
    return {f"{case} mean": [one for one in said if "PD431" in one] for case, said in found.items()}


def alone():
    import tensorflow as tf

    model = compiled(network(seed=0), tf.keras.optimizers.Adam(0.01, clipnorm=1.0))
    # A global batch is the ranks' batches together.
    both = [
        np.concatenate([part.reshape(STEPS, BATCH, *part.shape[1:]) for part in parts], axis=1)
        for parts in zip(data(0), data(1), strict=True)
    ]
    rows = [part.reshape(-1, *part.shape[2:]) for part in both]
    found = fitted(model, rows, 2 * BATCH)
    found |= measured(tf.keras.optimizers.Adam(0.05), rows, 2 * BATCH)
    found |= two_optimizers(lambda optimizer: optimizer, rows, 2 * BATCH)
    return found | masked(lambda optimizer: optimizer, nullcontext, [0, 1])


@pytest.fixture(scope="module")
def ranks():
    return run_job(in_job, timeout=300)


@pytest.fixture(scope="module")
def one_process():
    return run_job(alone, instances=1)[0]


def test_weights_slots_and_metrics_equal_one_process_on_the_global_batch(ranks, one_process):
    for name, value in one_process.items():
        if "masked" in name or name == "two warned":
            continue
        np.testing.assert_array_equal(ranks[1][name], ranks[0][name])
        np.testing.assert_allclose(ranks[0][name], value, rtol=2e-5, atol=2e-6)


def test_optimizers_that_compile_does_not_know_are_seen(ranks):
    assert ranks[0]["two warned"] == []


def test_weights_that_differ_after_the_first_step_stop_the_training(ranks):
    for rank in ranks:
        assert "[PD007] the instances hold different weights" in rank["divergence"]
        assert "kernel" in rank["divergence"]


def test_different_numbers_of_steps_are_named(ranks):
    for rank in ranks:
        assert (
            "an epoch of 4 steps on instance 0; an epoch of 3 steps on instance 1" in rank["steps"]
        )


def test_what_cannot_work_says_so(ranks):
    for rank in ranks:
        assert "reduces its gradients already" in rank["twice"]
        assert "cannot be used under a strategy" in rank["nested"]
        assert "XLA cannot compile" in rank["jit"]


def test_layers_that_instances_adapt_to_other_data_are_named(ranks, strategies):
    for first, second in (ranks, strategies):
        for rank in (first, second):
            for case in ("same", "own words", "words of one"):
                assert rank[f"{case} adapted"] == "no error"
                assert len(rank[f"{case} adapted warned"]) == (
                    case == "own words" and rank is first
                )
            for case in {"own samples adapted", "samples of one adapted"} & {*rank}:
                assert "[PD007] the instances hold different preprocessing layers" in rank[case]
                assert "layer of the model 0: Normalization" in rank[case]
        assert ("samples of one adapted" in first) == (first is ranks[0])
        assert "to data of its own" in first["own words adapted warned"][0]
        assert "TextVectorization" in first["own words adapted warned"][0]


@pytest.mark.parametrize("case", ["padding", "labels"])
def test_masked_losses_are_means_over_all_instances(ranks, strategies, one_process, case):
    for wrapped, strategy in zip(ranks, strategies, strict=True):
        np.testing.assert_allclose(
            strategy[f"{case} masked"], one_process[f"{case} masked"], rtol=2e-5, atol=2e-6
        )
        assert not any("PD431" in one for one in strategy[f"{case} masked warned"])
        # The wrapper counts on its own instance.
        np.testing.assert_array_equal(wrapped[f"{case} masked"], ranks[0][f"{case} masked"])
        assert np.abs(wrapped[f"{case} masked"] - one_process[f"{case} masked"]).max() > 1e-3
    assert any("PD431" in one for one in ranks[0][f"{case} masked warned"])


def test_gradients_of_another_mean_than_that_of_one_process_are_named(ranks, strategies):
    for first, second in (ranks, strategies):
        (said,) = first["unequal mean"]
        assert "[PD431] the instances have batches of different sizes" in said
        assert "batches of 8 rows, and at last 7 on instance 1" in said
        (said,) = first["unequal last mean"]
        assert "15 rows in 2 steps" in said
        (said,) = first["unequal call mean"]
        assert "a batch of 7 rows on instance 1" in said
        assert first["plain mean"] == first["equal last mean"] == []
        assert not any(said for case, said in second.items() if case.endswith(" mean"))
    for case in ("sum", "unequal sum", "unequal divided step"):
        # Neither sums nor a program's own size depend on how rows are divided.
        assert strategies[0][f"{case} mean"] == []
        (said,) = ranks[0][f"{case} mean"]
        assert "the whole is 2 times the mean of the halves" in said


def test_a_call_of_one_instance_alone_ends_or_is_an_error_on_all(ranks, strategies):
    for wrapped, strategy in zip(ranks, strategies, strict=True):
        # A wrapped model predicts in its own process.
        assert wrapped["lone predict"] == wrapped["lone evaluate"] == "no error"
        for rank, call in (
            (wrapped, "train_on_batch"),
            *((strategy, call) for call in ("predict", "evaluate", "train_on_batch")),
        ):
            assert "[PD007]" in rank[f"lone {call}"]
            assert f"{call} of a model on instance 0; a" in rank[f"lone {call}"]


def test_loss_scaling_works_around_the_wrapper_and_is_refused_inside(ranks):
    for rank in ranks:
        assert rank["loss scaling"] == "no error"
        assert "an update under a condition" in rank["inner"]


def test_epochs_of_unknown_length_end_together_or_stop(ranks):
    for rank in ranks:
        assert rank["unknown length"] == "no error"
        for case in ("unequal", "without callbacks"):
            assert "[PD007] the instances have different numbers of batches" in rank[case]


LEAVES = "[PD007] some instances end the training, and the others would wait for them forever"


def test_an_instance_that_leaves_an_epoch_stops_all(ranks, strategies):
    for instance, rank in enumerate((*ranks, *strategies)):
        assert LEAVES in rank["one leaves"]
        assert "1 of 2 instances end it after step 2 of epoch 0" in rank["one leaves"]
        assert f"this one {'ends' if instance % 2 else 'continues'}" in rank["one leaves"]
        assert rank["all leave"] == "no error"


def test_instances_that_train_on_the_same_rows_are_warned_once(ranks, strategies):
    for first, second in (ranks, strategies):
        for case in ("same arrays", "same batches"):
            assert "[PD418] all 2 instances train on the same rows" in first[case][0]
            assert second[case] == []
        for rank in (first, second):
            assert rank["own rows"] == []


def test_an_optimizer_that_does_not_reduce_is_found_after_the_first_step(ranks):
    for rank in ranks:
        assert "different weights after the first step" in rank["unwrapped"]
        assert all("[PD436] nothing reduces" in text for text in rank["warned"])
        assert any("DistributedOptimizer(optimizer)" in text for text in rank["warned"])


def test_horovods_own_wrapper_works_with_keras_2_and_never_diverges_in_silence(ranks):
    for rank in ranks:
        assert (rank["Horovod's own"] == "no error") == (rank["keras"] == 2)


def test_a_loop_of_ones_own_can_ask(ranks):
    for rank in ranks:
        assert "[PD007] the instances hold different weights in a loop" in rank["check"]
        assert rank["checked"] == "no error"


def under_the_strategy():
    import tensorflow as tf

    import popdist
    from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy

    strategy = PopDistStrategy()
    instance = popdist.getInstanceIndex()
    answers = {}
    with strategy.scope():
        model = compiled(network(seed=0), tf.keras.optimizers.SGD(0.1))

    def dataset(batches):
        whole = tf.data.Dataset.from_tensor_slices(data(instance)).batch(BATCH, drop_remainder=True)
        return whole.take(batches).filter(lambda *_: True)  # of unknown length

    _, said = with_warnings(model.fit, dataset(STEPS), epochs=2, verbose=0)
    answers["own rows"] = of_equal_rows(said)
    answers["weight"] = model.get_weights()[0]
    answers["unequal"] = error_of(model.fit, dataset(STEPS - instance), verbose=0)

    weights = model.get_weights()
    if instance == 1:
        model.set_weights([weight + 1 for weight in weights])
    answers["loaded"] = error_of(model.fit, dataset(STEPS), verbose=0)
    model.set_weights(weights)
    answers |= apart_later(model, dataset(STEPS), instance)
    known = dataset(STEPS).apply(tf.data.experimental.assert_cardinality(STEPS))
    answers |= left_early(model, known, instance)
    with strategy.scope():
        fresh = compiled(network(seed=0), tf.keras.optimizers.SGD(0.1))
    answers |= on_the_same_rows(fresh, model)
    answers["dropped"] = dropped(strategy)
    answers |= of_both_ways(lambda optimizer: optimizer, strategy.scope, instance)

    with strategy.scope():
        # A setting that is no variable, and so keeps what each instance has chosen.
        decaying = tf.keras.optimizers.SGD(0.1, weight_decay=0.1 * (1 + instance))
        other = compiled(network(seed=0), decaying)
    answers["fit"] = error_of(other.fit, dataset(STEPS), verbose=0)

    with strategy.scope():
        weight = tf.Variable([1.0])

    @tf.function
    def update():
        # Reduced, and then different on each instance after all.
        total = tf.distribute.get_replica_context().all_reduce("SUM", weight * 0.5)
        tf.distribute.get_replica_context().merge_call(
            lambda where, value: where.extended.update(weight, lambda v, g: v.assign(g), (value,)),
            (total * (1.0 + instance),),
        )

    answers["loop"] = error_of(strategy.run, update)
    with late_comparisons(instance):
        answers["late"] = left_over(strategy, instance)

    jitted = tf.function(
        lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([])),
        jit_compile=True,
    )
    held = strategy.experimental_local_results(strategy.run(jitted))
    answers["jit"] = [float(one) for one in held], strategy.num_replicas_in_sync
    answers["keras"] = 3 if hasattr(tf.keras.optimizers.Optimizer, "apply") else 2
    return answers


@contextmanager
def late_comparisons(instance):
    """The first instance begins to compare rows when weights have been compared elsewhere."""
    import tensorflow as tf

    from popdist_tf.checks.first_steps import FirstSteps

    compare = FirstSteps._in_step

    def late(self, rows, weights, number):
        late = tf.numpy_function(lambda one: (time.sleep(0.5), one)[1], [number], tf.int32)
        return compare(self, rows, weights, tf.ensure_shape(late, []))

    if instance == 0:
        FirstSteps._in_step = late
    yield
    FirstSteps._in_step = compare


def left_over(strategy, instance):
    """The error of a step that makes weights differ, and has more to compare."""
    import tensorflow as tf

    with strategy.scope():
        weight = tf.Variable([1.0])

    def update(rows):
        context = tf.distribute.get_replica_context()
        total = context.all_reduce("SUM", tf.reduce_sum(rows) * weight)
        context.merge_call(
            lambda where, value: where.extended.update(weight, lambda v, g: v.assign(g), (value,)),
            (total * (1.0 + instance),),
        )

    rows = tf.ones([2]) + instance
    return error_of(tf.function(lambda: strategy.run(update, (rows,))))


def apart_later(model, batches, instance):
    """Errors of trainings that part after the first step, by what one instance does alone."""
    import tensorflow as tf

    def change_rate(epoch, _):
        if instance == epoch == 1:
            model.optimizer.learning_rate.assign(1.0)

    def stop(*_):
        model.stop_training = instance == 1

    def restore(_):
        if instance == 1:
            model.set_weights([weight * 2 for weight in model.get_weights()])

    parting = tf.keras.callbacks.LambdaCallback
    callbacks = {
        "rate": parting(on_epoch_begin=change_rate),
        "stops": parting(on_epoch_end=stop),
        "restores": parting(on_train_end=restore),
    }
    batches = batches.apply(tf.data.experimental.assert_cardinality(STEPS))
    weights = model.get_weights()
    answers = {}
    for case in ("rate", "stops", "restores", "validation", "length"):
        settings = {
            "validation_data": batches if case == "validation" and instance == 0 else None,
            "steps_per_epoch": STEPS - instance if case == "length" else None,
        }
        answers[f"{case} later"] = error_of(
            model.fit, batches, epochs=3, verbose=0, callbacks=callbacks.get(case), **settings
        )
        model.set_weights(weights)
        model.optimizer.learning_rate.assign(0.1)
    return answers


def dropped(strategy):
    """Which of 64 units this instance leaves out, with equal seeds on all instances."""
    import tensorflow as tf

    from popdist_tf import ipu

    def masks(seed):
        with strategy.scope():
            layer = tf.keras.layers.Dropout(0.5, seed=seed)
        units = strategy.run(tf.function(lambda: layer(tf.ones([64]), training=True)))
        return units.numpy().tolist()

    tf.keras.utils.set_random_seed(1)
    own = [masks(None), masks(7)]
    ipu.utils.reset_ipu_seed(1, experimental_identical_replicas=True)
    return [*own, masks(7)]


@pytest.fixture(scope="module")
def strategies():
    return run_job(under_the_strategy, timeout=300)


def test_data_of_unknown_length_ends_together(strategies):
    np.testing.assert_array_equal(strategies[0]["weight"], strategies[1]["weight"])
    for rank in strategies:
        assert "[PD007] the instances have different numbers of batches" in rank["unequal"]


def test_weights_that_one_instance_has_loaded_are_found_before_the_next_fit(strategies):
    for rank in strategies:
        assert "[PD007] the instances hold different weights before this data" in rank["loaded"]


def test_trainings_that_part_after_the_first_step_stop_at_the_end_of_an_epoch(strategies):
    for rank in strategies:
        assert "[PD007] the instances hold different weights after epoch 1" in rank["rate later"]
        assert "ends the training on instance 1" in rank["stops later"]
        end = "[PD007] the instances hold different weights at the end of the training"
        assert end in rank["restores later"]
        validated = "a data set of 4 batches on instance 0; epoch 0, after which"
        assert validated in rank["validation later"]
        steps = "an epoch of 4 steps on instance 0; an epoch of 3 steps on instance 1"
        assert steps in rank["length later"]


def test_dropout_differs_between_replicas_unless_the_program_wants_them_identical(strategies):
    (unseeded, seeded, identical), others = (rank["dropped"] for rank in strategies)
    # Keras 3 draws by its own generators, whose state all replicas share.
    if strategies[0]["keras"] == 2:
        assert unseeded != others[0]
        assert seeded != others[1]
    assert identical == others[2]
    assert 0 < sum(unit > 0 for unit in seeded) < len(seeded)


def test_a_failing_comparison_leaves_no_other_one_behind(strategies):
    for rank in strategies:
        assert "[PD007] the instances hold different weights" in rank["late"]


@pytest.mark.parametrize("where", ["fit", "loop"])
def test_weights_that_a_step_makes_different_stop_the_training(strategies, where):
    for rank in strategies:
        assert "[PD007] the instances hold different weights after the first step" in rank[where]


def test_a_step_that_is_to_be_compiled_exchanges_as_any_other(strategies):
    for rank in strategies:
        sums, replicas = rank["jit"]
        assert sums == [replicas] * len(sums)


@pytest.mark.parametrize(
    ("program", "options"),
    [
        ("tf_keras_digits.py", ["--num-instances=2", "--num-replicas=4"]),
        ("tf_keras_six_steps.py", ["--num-instances=2", "--num-replicas=2"]),
    ],
)
def test_the_examples_train_alike_on_all_ranks(program, options):
    words = [*python("tensorflow"), EXAMPLES / program, FEW_EPOCHS]
    code, output = run_command([*LAUNCHER, *options, *words])
    assert code == 0, output
    assert output.count("identical on all ranks: ok") == 2


@pytest.mark.parametrize("program", ["tf_keras_digits.py", "tf_keras_six_steps.py"])
def test_the_examples_run_alone(program):
    code, output = run_command([*python("tensorflow"), EXAMPLES / program, FEW_EPOCHS])
    assert code == 0, output
    assert "rank 0 of 1" in output


def installation():
    # As the guide's Listing 4.1 has it, with this project's name for the module.
    import popdist
    import popdist.tensorflow
    from popdist_tf.ipu import horovod as hvd

    hvd.init()
    return {"size": hvd.size(), "instances": popdist.getNumInstances()}


def test_the_guides_check_of_the_installation_passes():
    assert run_job(installation) == [{"size": 2, "instances": 2}] * 2
