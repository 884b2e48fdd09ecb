"""Published layers, optimizers and operations over replicas on real ranks, against one process."""

import numpy as np
import pytest

from tests.distributed.jobs import EXHAUSTIVE, run_job

STEPS, REPLICAS, BATCH, TIME = 4, 4, 3, 5
TRAINED = ("lamb", "sgd", "clipped", "scaled", "accumulated", "crossed", "loop")


def samples():
    rng = np.random.default_rng(5)
    words = rng.integers(0, 12, size=(STEPS, REPLICAS * BATCH, TIME))
    return words, rng.integers(0, 3, size=words.shape[:2])


def batches(strategy, instance):
    """This instance's batches, one for each of its replicas and steps."""
    total, local = strategy.num_replicas_in_sync, strategy.extended.replicas_per_step
    parts = [one.reshape(STEPS, total, -1, *one.shape[2:]) for one in samples()]
    own = [one[:, instance * local : (instance + 1) * local] for one in parts]
    return tuple(one.reshape(-1, *one.shape[2:]) for one in own)


def network(case):
    import tensorflow as tf

    from popdist_tf.ipu.addons.keras import layers

    embedded = [
        tf.keras.layers.Input((TIME,), dtype="int32"),
        layers.Embedding(12, 4, serialization_factor=2),
    ]
    if case == "clipped":
        normal = tf.keras.layers.SpectralNormalization(tf.keras.layers.Dense(3))
        return tf.keras.Sequential([*embedded, tf.keras.layers.Flatten(), normal])
    if case != "lamb":  # recurrent layers take seconds to build
        return tf.keras.Sequential([*embedded, tf.keras.layers.Flatten(), tf.keras.layers.Dense(3)])
    return tf.keras.Sequential(
        [
            *embedded,
            layers.GroupNormalization(groups=2),
            layers.GRU(4, return_sequences=True, seed=1),
            layers.LSTM(4, seed=1, options={"useful": "no"}),
            layers.SerialDense(3, 2, "input_rows_kernel_columns"),
        ]
    )


def optimizer_of(case):
    import tensorflow as tf

    from popdist_tf import ipu

    published = ipu.keras.optimizers
    if case == "lamb":
        return published.LAMBIpuOptimizer(0.02, weight_decay_rate=0.1)
    if case == "sgd":
        return published.SGDIpuOptimizer(0.2, momentum=0.9, nesterov=True)
    if case == "clipped":
        return tf.keras.optimizers.SGD(0.2, momentum=0.9, global_clipnorm=0.1)
    if case == "scaled":
        wrap = published.ALSOptimizer
        return wrap(tf.keras.optimizers.SGD(0.2, momentum=0.9), 2.0**12, 2, histogram_bin_edge=64.0)
    if case == "crossed":
        return published.CrossReplicaOptimizer(tf.keras.optimizers.SGD(0.2, momentum=0.9))
    mapped = published.MapGradientOptimizer(
        tf.keras.optimizers.Adam(0.02), lambda gradient, variable: gradient + 0.1 * variable
    )
    return published.GradientAccumulationOptimizer(mapped, 2, reduction_method="mean")


def fitted(strategy, instance, case):
    import tensorflow as tf

    words, labels = batches(strategy, instance)
    dataset = tf.data.Dataset.from_tensor_slices((words, labels))
    tf.keras.utils.set_random_seed(3)
    with strategy.scope():
        model = network(case)
        optimizer = optimizer_of(case)
        model.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = model.fit(dataset, epochs=2, verbose=0).history["loss"]
    found = {f"{case} {i}": weight for i, weight in enumerate(model.get_weights())}
    updates = int(np.asarray(optimizer.iterations))
    assert updates == 2 * STEPS // (2 if case == "accumulated" else 1)
    if case == "scaled":
        found["factor"] = np.asarray(optimizer.loss_scaling_factor)
    return {**found, f"{case} losses": np.asarray(losses)}


def looped(strategy, instance):
    """A loop of one's own around recurrent layers of TensorFlow 1's kind."""
    import tensorflow as tf

    from popdist_tf import ipu

    words, labels = batches(strategy, instance)
    dataset = tf.data.Dataset.from_tensor_slices((words, labels))
    rng = np.random.default_rng(0)
    table = rng.normal(size=(12, 4)).astype(np.float32)
    with strategy.scope():
        recurrent = ipu.rnn_ops.PopnnDynamicLSTM(3, seed=2)
        recurrent.build((TIME, BATCH, 4))
        optimizer = ipu.keras.optimizers.CrossReplicaGradientAccumulationOptimizer(
            tf.keras.optimizers.SGD(0.5), 2
        )

    def step(own_words, own_labels):
        with tf.GradientTape() as tape:
            inputs = tf.transpose(tf.nn.embedding_lookup(table, own_words), [1, 0, 2])
            lengths = own_labels + 2
            _, state = recurrent(inputs, lengths)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(own_labels, state.h)
            )
        variables = recurrent.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    run = tf.function(lambda *element: strategy.run(step, args=element))
    for element in strategy.experimental_distribute_dataset(dataset):
        run(*element)
    return {f"loop {one.name}": one.numpy() for one in recurrent.variables}


def exchanged(strategy):
    """What each local replica has after operations over all replicas."""
    import tensorflow as tf

    from popdist_tf import ipu

    total = strategy.num_replicas_in_sync

    def step():
        index = tf.cast(ipu.replication_ops.replication_index(), tf.float32)
        own = 100 * index + tf.reshape(tf.range(6.0 * total), [2 * total, 3])
        return {
            "gathered": ipu.all_to_all_op.all_gather(own[:2], total),
            "swapped": ipu.all_to_all_op.all_to_all(own, 0, 1, total),
            "scattered": ipu.reduce_scatter_op.reduce_scatter(own[0], total),
        }

    found = tf.function(lambda: strategy.run(step))()
    return {
        f"{name} {number}": value.numpy()
        for name, one in found.items()
        for number, value in enumerate(strategy.experimental_local_results(one))
    }


def unreduced():
    """The message of a model that would be trained on each instance alone."""
    import tensorflow as tf

    from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy

    with PopDistStrategy(add_ipu_cross_replica_reductions=False).scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
        model.compile("sgd", "mse")
    try:
        model.fit(np.ones((4, 2)), np.ones((4, 1)), batch_size=1, verbose=0)
    except ValueError as error:
        return str(error)
    return "no error"


def warned(strategy):
    """What is said of loops that reduce gradients in a step, outside of it, or not at all."""
    import warnings

    import tensorflow as tf

    from popdist_tf import ipu

    def train(name):
        with strategy.scope():
            weight = tf.Variable([1.0, 2.0])
            optimizer = tf.keras.optimizers.Adam(0.1)

        def gradient():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(weight * weight)
            return tape.gradient(loss, weight)

        def step():
            own = gradient()
            if name in ("inside", "built"):
                own = ipu.cross_replica_ops.cross_replica_mean(own)
            optimizer.apply_gradients([(own, weight)])

        if name == "outside":
            mean = strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(gradient), axis=None)
            strategy.run(lambda: optimizer.apply_gradients([(mean, weight)]))
        elif name == "built":  # once, and run several times
            built = tf.function(step)
            for _ in range(3):
                strategy.run(built)
        else:
            tf.function(lambda: strategy.run(step))()

    def apart():
        with tf.Graph().as_default():
            weight = tf.compat.v1.get_variable("apart", [2])
            descent = tf.compat.v1.train.GradientDescentOptimizer(0.1)
            ipu.optimizers.CrossReplicaOptimizer(descent).minimize(tf.reduce_sum(weight * weight))

    said = {}
    for name in ("inside", "outside", "built", "nothing", "apart"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            apart() if name == "apart" else train(name)
        said[name] = [str(one.message) for one in caught if "PD436" in str(one.message)]
    return said


def everything():
    import tensorflow as tf

    import popdist
    from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy

    strategy, instance = PopDistStrategy(), popdist.getInstanceIndex()
    answers = {"local": strategy.extended.replicas_per_step}
    is_old = hasattr(tf.keras.optimizers.SGD, "compute_gradients")  # of Keras 2
    for case in ("lamb", "sgd", "clipped", "accumulated", *(["scaled"] if is_old else [])):
        answers |= fitted(strategy, instance, case)
    answers |= exchanged(strategy)
    answers["unreduced"] = unreduced()
    apart = PopDistStrategy(add_ipu_cross_replica_reductions=False)
    answers["warned"] = warned(apart)
    answers |= fitted(apart, instance, "crossed")
    return answers | looped(apart, instance)


@pytest.fixture(scope="module")
def alone():
    (answers,) = run_job(everything, instances=1, timeout=280)
    return answers


@pytest.mark.parametrize("replicas", [4, *[2] * EXHAUSTIVE])
def test_they_train_like_one_process_on_the_global_batch(replicas, alone):
    ranks = run_job(everything, instances=2, replicas=replicas, timeout=280)
    trained = [key for key in alone if key.split()[0] in TRAINED]
    assert len(trained) > 20
    for name in trained:
        np.testing.assert_array_equal(ranks[0][name], ranks[1][name], err_msg=name)
        np.testing.assert_allclose(ranks[0][name], alone[name], rtol=2e-4, atol=2e-5, err_msg=name)
    if "factor" in alone:  # it shrinks, as gradients of all replicas are counted
        assert ranks[0]["factor"] == ranks[1]["factor"] < 2**12
    _check_exchanges(ranks, replicas)
    for rank in ranks:
        assert "[PD436] nothing reduces the gradients of this model" in rank["unreduced"]
        said = rank["warned"]
        assert (said["inside"], said["outside"], said["built"]) == ([], [], [])
        assert [one[:35] for one in said["nothing"]] == ["[PD436] nothing reduces the gradien"]
        assert [one[:35] for one in said["apart"]] == ["[PD436] CrossReplicaOptimizer avera"]


def _check_exchanges(ranks, total):
    owns = [100 * i + np.arange(6.0 * total).reshape(2 * total, 3) for i in range(total)]
    summed = np.zeros(-(-3 // total) * total)
    summed[:3] = np.sum(owns, axis=0)[0]
    for rank, answers in enumerate(ranks):
        for local in range(answers["local"]):
            index = rank * answers["local"] + local
            np.testing.assert_array_equal(
                answers[f"gathered {local}"], np.array([own[:2] for own in owns])
            )
            swapped = np.concatenate([own[2 * index : 2 * index + 2] for own in owns], axis=1)
            np.testing.assert_array_equal(answers[f"swapped {local}"], swapped)
            np.testing.assert_array_equal(
                answers[f"scattered {local}"], np.split(summed, total)[index]
            )
