"""`global_mean` on two real ranks: each token counts alike, wherever it is."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

import popdist
from tests.distributed.jobs import run_job

EXACT = 1e-13
LEFT_OUT = -100
UPDATES, ROWS, STEPS = 3, 16, 5


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.Linear(6, 4)
    ).double()


def batches(part=slice(None)):
    """Sequences of a global batch; the second half of the first batch has no valid token."""
    draw = torch.Generator().manual_seed(7)
    for update in range(UPDATES):
        x = torch.randn(ROWS, STEPS, 3, generator=draw).double()
        y = torch.randint(0, 4, (ROWS, STEPS), generator=draw)
        y[torch.rand(ROWS, STEPS, generator=draw) < torch.linspace(0, 0.9, ROWS)[:, None]] = (
            LEFT_OUT
        )
        if update == 0:
            y[ROWS // 2 :] = LEFT_OUT
        yield x[part], y[part]


def total(scores, y):
    flat = scores.flatten(0, 1), y.flatten()
    return F.cross_entropy(*flat, ignore_index=LEFT_OUT, reduction="sum")


def expected(decay=0.0):
    """The weights of torch in one process, with the mean over the tokens of the whole batch."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    for x, y in batches():
        optimizer.zero_grad()
        loss = total(model(x), y) / (y != LEFT_OUT).sum()
        (loss + decay * model[0].weight.square().sum()).backward()
        optimizer.step()
    return flat(model)


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()


def plain_loop(passes):
    import popdist_torch.horovod as hvd

    hvd.init()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    optimizer = hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), backward_passes_per_step=passes
    )
    own = ROWS // hvd.size()
    for x, y in batches(slice(hvd.rank() * own, (hvd.rank() + 1) * own)):
        optimizer.zero_grad()
        count = (y != LEFT_OUT).sum()
        for part_x, part_y in zip(x.chunk(passes), y.chunk(passes), strict=True):
            loss = hvd.global_mean(total(model(part_x), part_y), count)
            (loss + 0.01 / passes * model[0].weight.square().sum()).backward()
        optimizer.step()
    with torch.no_grad():
        assert float(hvd.global_mean(torch.tensor(6.0), 3)) == 2.0
    return {"weights": flat(model)}


@pytest.mark.parametrize("passes", [1, 2])
def test_a_plain_loop_trains_like_one_process(passes):
    for answer in run_job(plain_loop, passes=passes):
        np.testing.assert_allclose(answer["weights"], expected(0.01), rtol=0, atol=EXACT)


class Model(torch.nn.Module):
    def __init__(self, decay):
        super().__init__()
        self.layers = network()
        self.decay = decay

    def forward(self, x, y):
        import popdist_torch as poptorch

        scores = self.layers(x)
        loss = poptorch.global_mean(total(scores, y), (y != LEFT_OUT).sum())
        if not self.decay:
            return loss
        decayed = loss + self.decay * self.layers[0].weight.square().sum()
        return poptorch.identity_loss(decayed, "none")


def training_model(accumulation, decay, running=False, invariant=False):
    import popdist.poptorch
    import popdist_torch as poptorch

    options = popdist.poptorch.Options()
    options.Training.gradientAccumulation(accumulation)
    if running:
        strategy = poptorch.MeanReductionStrategy.Running
        options.Training.setMeanAccumulationAndReplicationReductionStrategy(strategy)
    model = Model(decay)
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    training = poptorch.trainingModel(model, options, optimizer, placement_invariant=invariant)
    own = ROWS // popdist.getNumInstances()
    first = popdist.getInstanceIndex() * own
    for x, y in batches(slice(first, first + own)):
        training(x, y)
    return {"weights": flat(model.layers)}


@pytest.mark.parametrize(
    ("replicas", "settings"),
    [
        (2, {"accumulation": 1, "decay": 0.01}),
        (4, {"accumulation": 2, "decay": 0.0}),
        (4, {"accumulation": 2, "decay": 0.01, "running": True}),
        (2, {"accumulation": 4, "decay": 0.0, "invariant": True}),
    ],
    ids=str,
)
def test_a_training_model_trains_like_one_process(replicas, settings):
    for answer in run_job(training_model, replicas=replicas, **settings):
        wanted = expected(settings["decay"])
        np.testing.assert_allclose(answer["weights"], wanted, rtol=0, atol=EXACT)


def onnx_training():
    import popdist_onnx

    def loss(scores, y):
        valid = (y != LEFT_OUT).double()
        rows = F.cross_entropy(scores.transpose(1, 2), y.clamp(min=0), reduction="none")
        return popdist_onnx.global_mean((rows * valid).sum(), valid.sum())

    x, y = (torch.cat(one) for one in zip(*batches(), strict=True))
    replicas = popdist.getNumTotalReplicas()
    model = popdist_onnx.from_torch(network(), x[:ROWS], loss=loss, example_labels=y[:ROWS])
    settings = {"optimizer": "sgd", "learning_rate": 0.3, "accumulation": 2, "shuffle": False}
    size = ROWS // 2 // replicas
    trainer = popdist_onnx.train(
        model, x.numpy(), y.numpy(), batch_size=size, epochs=1, progress=False, **settings
    )
    names = [name for name, _ in network().named_parameters()]
    return {"weights": np.concatenate([trainer.weights[name].ravel() for name in names])}


def test_a_loss_of_onnx_trains_like_one_process():
    for answer in run_job(onnx_training, replicas=4):
        # Learning rates of ONNX are in single precision.
        np.testing.assert_allclose(answer["weights"], expected(), rtol=0, atol=1e-8)


def softmax_regression():
    """The weights of a softmax regression after all updates, by numpy."""
    weights = np.zeros((3, 4))
    for x, y in batches():
        valid = y.flatten().numpy() != LEFT_OUT
        rows, labels = x.flatten(0, 1).numpy()[valid], y.flatten().numpy()[valid]
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
        run(tf.constant(x.numpy()), tf.constant(y.numpy()))
    return {"weights": weights.numpy()}


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
    x, y = (torch.cat(one).numpy() for one in zip(*batches(mine), strict=True))
    model = Regression(dtype="float64")
    model.build((None, STEPS, 3))
    model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.3)))
    model.fit(x, y, batch_size=own, shuffle=False, verbose=0)
    return {"weights": model.kernel.numpy()}


@pytest.mark.parametrize(
    ("function", "replicas"), [(strategy_loop, 4), (strategy_loop, 2), (keras_train_step, 2)]
)
def test_tensorflow_trains_like_one_process(function, replicas):
    for answer in run_job(function, replicas=replicas):
        # Keras holds learning rates in single precision.
        np.testing.assert_allclose(answer["weights"], softmax_regression(), rtol=0, atol=1e-7)
