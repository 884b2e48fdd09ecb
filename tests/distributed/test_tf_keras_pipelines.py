"""Keras models in pipeline stages: gradients of several micro-batches, and one update.

Expectations come from a plain loop of TensorFlow over the same micro-batches, in one process.
"""

from importlib.metadata import version

import numpy as np
import pytest

from tests.distributed.jobs import EXHAUSTIVE, run_job

BATCH = 3
MICRO_BATCHES = 2
UPDATES = 3
EPOCHS = 2
CASES = ["sequential", "functional", "accumulated", "mean"]


def samples(replicas):
    """Shape (micro-batches, replicas, batch, 4), and a label for each row."""
    rng = np.random.default_rng(3)
    features = rng.normal(size=(UPDATES * MICRO_BATCHES, replicas, BATCH, 4)).astype(np.float32)
    return features, rng.integers(0, 3, size=features.shape[:3])


def model_of(case, stage):
    """A small model; ``stage`` is the scope of a stage."""
    import tensorflow as tf

    tf.keras.utils.set_random_seed(4)
    layers = [
        tf.keras.layers.Dense(5, activation="tanh", kernel_regularizer="l2"),
        tf.keras.layers.Dense(4, activation="tanh"),
        tf.keras.layers.Dense(3),
    ]
    if case != "functional":
        return tf.keras.Sequential([tf.keras.layers.Input((4,)), *layers])
    inputs = value = tf.keras.layers.Input((4,))
    for number, layer in enumerate(layers):
        with stage(number // 2):
            value = layer(value)
    return tf.keras.Model(inputs, value)


def fitted(strategy, case, data):
    import tensorflow as tf

    from popdist_tf.ipu.keras import PipelineStage
    from popdist_tf.ipu.optimizers import GradientAccumulationReductionMethod

    with strategy.scope():
        model = model_of(case, PipelineStage)
        if case == "sequential":
            model.set_pipeline_stage_assignment([0, 1, 1])
        if case in ("sequential", "functional"):
            model.set_pipelining_options(
                gradient_accumulation_steps_per_replica=MICRO_BATCHES,
                device_mapping=[0, 1],
                pipeline_schedule=None,
            )
        else:
            method = GradientAccumulationReductionMethod["MEAN" if case == "mean" else "SUM"]
            model.set_gradient_accumulation_options(
                gradient_accumulation_steps_per_replica=MICRO_BATCHES,
                gradient_accumulation_reduction_method=method,
            )
        model.set_infeed_queue_options(prefetch_depth=2)
        model.set_outfeed_queue_options(buffer_depth=2)
        model.compile(
            optimizer=tf.keras.optimizers.Adam(0.01, global_clipnorm=0.5),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=MICRO_BATCHES,
        )
        history = model.fit(data, epochs=EPOCHS, verbose=0, shuffle=False).history
    kept = [*model.weights, *model.optimizer.variables]
    stages = [getattr(s, "pipeline_stage", s) for s in model.get_pipeline_stage_assignment()]
    return {
        **{f"{case} {i}": np.asarray(one.numpy()) for i, one in enumerate(kept)},
        f"{case} accuracy": np.asarray(history["accuracy"]),
        f"{case} stages": stages,
    }


def pipelined(cases):
    import tensorflow as tf

    import popdist
    from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy

    strategy = PopDistStrategy()
    local, first = popdist.getNumLocalReplicas(), popdist.getInstanceIndex()
    own = slice(first * local, (first + 1) * local)
    features, labels = samples(popdist.getNumTotalReplicas())
    rows = features[:, own].reshape(-1, 4), labels[:, own].reshape(-1)
    data = tf.data.Dataset.from_tensor_slices(rows).batch(BATCH, drop_remainder=True)
    answers = {}
    for case in cases:
        answers |= fitted(strategy, case, data)
    return answers


def expected(replicas):
    """Weights, slots and accuracies of a plain loop, for a sum and a mean of the gradients."""
    import tensorflow as tf

    features, labels = samples(replicas)
    answers = {}
    for case, scale in (("accumulated", 1.0), ("mean", 1.0 / MICRO_BATCHES)):
        model = model_of(case, None)
        optimizer = tf.keras.optimizers.Adam(0.01, global_clipnorm=0.5)
        accuracies = []
        for _ in range(EPOCHS):
            right = 0
            for update in range(UPDATES):
                weights = model.trainable_variables
                total = [tf.zeros_like(one) for one in weights]
                for micro in range(update * MICRO_BATCHES, (update + 1) * MICRO_BATCHES):
                    x, y = features[micro].reshape(-1, 4), labels[micro].reshape(-1)
                    with tf.GradientTape() as tape:
                        logits = model(x)
                        loss = tf.keras.losses.sparse_categorical_crossentropy(
                            y, logits, from_logits=True
                        )
                        loss = tf.reduce_mean(loss) + tf.add_n(model.losses)
                    found = tape.gradient(loss, weights)
                    total = [one + scale * new for one, new in zip(total, found, strict=True)]
                    right += int(np.sum(np.argmax(logits, -1) == y))
                optimizer.apply_gradients(zip(total, weights, strict=True))
            accuracies.append(right / labels.size)
        kept = [*model.weights, *optimizer.variables]
        answers |= {f"{case} {i}": np.asarray(one.numpy()) for i, one in enumerate(kept)}
        answers[f"{case} accuracy"] = np.asarray(accuracies)
    return answers


@pytest.mark.skipif(
    not version("keras").startswith("2."), reason="Keras 3 accumulates by its optimizers"
)
@pytest.mark.parametrize(
    ("replicas", "cases"),
    [(2, CASES), (4, ["functional", "mean"]), *[(8, ["functional"])] * EXHAUSTIVE],
    ids=["2x1", "2x2", *["2x4"] * EXHAUSTIVE],
)
def test_models_in_stages_train_like_one_process(replicas, cases):
    ranks = run_job(pipelined, replicas=replicas, timeout=300, cases=cases)
    reference = expected(replicas)
    stages = {"sequential": [0, 1, 1], "functional": [0, 0, 1]}
    for case in cases:
        source = "mean" if case == "mean" else "accumulated"
        names = [name for name in reference if name.startswith(f"{source} ")]
        assert len(names) > 15
        for name in names:
            own = name.replace(source, case, 1)
            for rank in ranks:
                np.testing.assert_array_equal(rank[own], ranks[0][own], err_msg=own)
                np.testing.assert_allclose(
                    rank[own], reference[name], rtol=2e-5, atol=2e-6, err_msg=own
                )
        for rank in ranks:
            assert rank[f"{case} stages"] == stages.get(case, [None] * 3)
