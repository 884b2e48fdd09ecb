"""`global_mean` in TensorFlow programs on two real ranks: each token counts alike."""

import numpy as np
import pytest

import popdist
from tests.distributed.jobs import run_job

LEFT_OUT = -100
UPDATES, ROWS, STEPS = 3, 16, 5


def batches(part=slice(None)):
    """Sequences of a global batch; the second half of the first batch has no valid token."""
    draw = np.random.default_rng(7)
    for update in range(UPDATES):
        x = draw.normal(size=(ROWS, STEPS, 3))
        y = draw.integers(0, 4, size=(ROWS, STEPS))
        y[draw.random((ROWS, STEPS)) < np.linspace(0, 0.9, ROWS)[:, None]] = LEFT_OUT
        if update == 0:
            y[ROWS // 2 :] = LEFT_OUT
        yield x[part], y[part]


def softmax_regression():
    """The weights of a softmax regression after all updates, by numpy."""
    weights = np.zeros((3, 4))
    for x, y in batches():
        valid = y != LEFT_OUT
        rows, labels = x[valid], y[valid]
        scores = rows @ weights
        chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        weights -= 0.3 * rows.T @ (chances - np.eye(4)[labels]) / len(rows)
    return weights


def tokens(weights, x, y):
    """The sum over valid tokens, and their number."""
    import tensorflow as tf

    valid = tf.cast(y != LEFT_OUT, tf.float64)
    labels = tf.maximum(y, 0)
    scores = tf.tensordot(x, weights, 1)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
    return tf.reduce_sum(losses * valid), tf.reduce_sum(valid)


def strategy_loop():
    import tensorflow as tf

    from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy
    from popdist_tf.keras import global_mean

    strategy = PopDistStrategy()
    with strategy.scope():
        weights = tf.Variable(np.zeros((3, 4)))
        optimizer = tf.keras.optimizers.SGD(0.3)

    own = ROWS // popdist.getNumTotalReplicas()

    def step(x, y):
        first = tf.distribute.get_replica_context().replica_id_in_sync_group * own
        with tf.GradientTape() as tape:
            part = tokens(weights, x[first : first + own], y[first : first + own])
            loss = global_mean(*part)
        optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])

    @tf.function
    def run(x, y):
        strategy.run(step, args=(x, y))

    for x, y in batches():
        run(tf.constant(x), tf.constant(y))
    return weights.numpy()


def keras_train_step():
    import tensorflow as tf

    import popdist_tf.keras as hvd

    hvd.init()
    tf.keras.backend.set_floatx("float64")  # the type of what fit reads

    class Regression(tf.keras.Model):
        def build(self, _shape):
            self.kernel = self.add_weight(
                name="kernel", shape=(3, 4), initializer="zeros", dtype="float64"
            )
            self.built = True

        def call(self, x):
            return tf.tensordot(x, self.kernel, 1)

        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = hvd.global_mean(*tokens(self.kernel, x, y))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    own = ROWS // hvd.size()
    mine = slice(hvd.rank() * own, (hvd.rank() + 1) * own)
    x, y = map(np.concatenate, zip(*batches(mine), strict=True))
    model = Regression(dtype="float64")
    model.build((None, STEPS, 3))
    model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.3)))
    model.fit(x, y, batch_size=own, shuffle=False, verbose=0)
    return model.kernel.numpy()


def all_trainings():
    """The weights of every training with the replicas of this job."""
    found = {"strategy": strategy_loop()}
    if popdist.getNumLocalReplicas() == 1:  # that one also sets the type of Keras' values
        found["train_step"] = keras_train_step()
    return found


@pytest.mark.parametrize(("replicas", "count"), [(4, 1), (2, 2)])
def test_tensorflow_trains_like_one_process(replicas, count):
    for answer in run_job(all_trainings, replicas=replicas):
        assert len(answer) == count
        for weights in answer.values():
            # Keras holds learning rates in single precision.
            np.testing.assert_allclose(weights, softmax_regression(), rtol=0, atol=1e-7)
