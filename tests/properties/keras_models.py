"""Each loss of the table in ``fit``, under a strategy and by the wrapper, beside one process."""

import logging
import re
import warnings
from contextlib import nullcontext

import numpy as np
import tensorflow as tf

import popdist
import popdist_tf.keras as wrapper
from popdist.agreement import digest
from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy
from tests.properties.keras_losses import (
    CLASSES,
    EQUAL,
    LOSSES,
    NAMED,
    WIDTH,
    Net,
    rows_of,
)

ROWS, UPDATES, RATE = 48, {"eager": 2, "built": 8}, 0.05
CODE = re.compile(r"\[(PD\d{3})\]")


class Trained(Net):
    """A network with a ``train_step`` of the program, which divides as Keras does.

    Args:
        loss: A loss of the table.
        part: A layer that it uses.
    """

    def __init__(self, loss, part=None):
        super().__init__(part)
        self.of_rows = loss

    def divided(self, x, y):
        return self.of_rows(self, x, y) / tf.distribute.get_strategy().num_replicas_in_sync

    def changed(self, gradients):
        return gradients

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            value = self.divided(x, y)
        found = self.changed(tape.gradient(value, self.trainable_weights))
        pairs = zip(found, self.trainable_weights, strict=True)
        self.optimizer.apply_gradients([pair for pair in pairs if pair[0] is not None])
        return {"loss": value}


class Undivided(Trained):
    def divided(self, x, y):
        return self.of_rows(self, x, y)


class OfGlobalBatch(Trained):
    """Divides by a number that the program has, and not its rows."""

    def divided(self, x, y):
        return tf.nn.compute_average_loss(rows_of(self, x, y), global_batch_size=ROWS)


class DividedBefore(Trained):
    """Divides by a number that the program has asked for outside of its step."""

    def __init__(self, loss):
        super().__init__(loss)
        self.replicas = tf.distribute.get_strategy().num_replicas_in_sync

    def divided(self, x, y):
        return self.of_rows(self, x, y) / self.replicas


class CountedOverAll(Trained):
    """Counts what a mask leaves over all replicas, in its own way."""

    def divided(self, x, y):
        kept = tf.cast(x[:, 0] > 0, x.dtype)
        context = tf.distribute.get_replica_context()
        count = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(kept))
        return tf.reduce_sum(kept * rows_of(self, x, y)) / count


class Clipped(Trained):
    def changed(self, gradients):
        return tf.clip_by_global_norm(gradients, 0.05)[0]


class SummedAndClipped(Trained):
    """Sums gradients itself, before it clips them."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            value = self.divided(x, y)
        trained = [self.first.kernel, self.last.kernel]
        context = tf.distribute.get_replica_context()
        found = context.all_reduce(tf.distribute.ReduceOp.SUM, tape.gradient(value, trained))
        found = tf.clip_by_global_norm(found, 0.05)[0]
        self.optimizer.apply_gradients(
            zip(found, trained, strict=True), skip_gradients_aggregation=True
        )
        return {"loss": value}


# Models whose step is not that of `Trained`: the class, arguments of ``compile``, and the verdicts
# under a strategy and by the wrapper.

_MEAN = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
_SUM = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
_MASK = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
MODELS = {
    "compiled mean": (Net, {"loss": _MEAN}, (EQUAL, EQUAL)),
    "compiled sum": (Net, {"loss": _SUM}, (EQUAL, NAMED)),
    "compiled mask": (Net, {"loss": _MASK}, (EQUAL, NAMED)),
    "clipnorm of the optimizer": (Net, {"loss": _MEAN, "clips": True}, (EQUAL, EQUAL)),
    "undivided": (Undivided, {}, (NAMED, EQUAL)),
    "global batch size": (OfGlobalBatch, {}, (EQUAL, NAMED)),
    "counted over all": (CountedOverAll, {}, (EQUAL, NAMED)),
    "clipped by each replica": (Clipped, {}, (NAMED, NAMED)),
    "summed and clipped": (SummedAndClipped, {}, (EQUAL, NAMED)),
    "divided before": (DividedBefore, {}, (EQUAL, EQUAL)),
}


def batches(updates):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(updates, ROWS, WIDTH))
    return x, rng.integers(0, CLASSES, (updates, ROWS))


class Log(logging.Handler):
    def __init__(self):
        super().__init__(logging.INFO)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def trained(kind, options, way, mode):
    """The weights of a model after ``fit`` in this process, and what was said of it."""
    options = dict(options)
    clips = options.pop("clips", False)
    rank, size = (popdist.getInstanceIndex(), popdist.getNumInstances()) if way else (0, 1)
    strategy = PopDistStrategy() if way == "strategy" else None
    said, logger = Log(), logging.getLogger("popdist.tf")
    logger.addHandler(said)
    logger.setLevel(logging.INFO)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with strategy.scope() if strategy else nullcontext():
            model = kind()
            optimizer = tf.keras.optimizers.SGD(RATE, global_clipnorm=0.05 if clips else None)
            if way == "wrapper":
                optimizer = wrapper.DistributedOptimizer(optimizer)
            model.compile(optimizer, run_eagerly=mode == "eager", **options)
        mine = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
        x, y = (part[:, mine].reshape(-1, *part.shape[2:]) for part in batches(UPDATES[mode]))
        model.fit(x, y, batch_size=ROWS // size, shuffle=False, verbose=0)
    logger.removeHandler(said)
    texts = [str(one.message) for one in caught] + said.texts
    return [np.asarray(weight) for weight in model.get_weights()], texts


def cases():
    """What is trained: a function that makes the model, arguments of ``compile``, and how."""
    for name, (_, *parts) in LOSSES.items():
        yield name, (lambda parts=parts: Trained(*parts), {}), "eager"
    mean = LOSSES["cross_entropy"][1]
    for name, (kind, options, _) in MODELS.items():
        made = kind if kind is Net else lambda kind=kind: kind(mean)
        yield name, (made, options), "built"


def outcomes(way, chosen=None):
    """The codes that a job names, and, by one of its instances, differences from one process.

    Args:
        way: "strategy" or "wrapper".
        chosen: Names of cases; None for all.
    """
    tf.keras.backend.set_floatx("float64")
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    held = [case for case in cases() if chosen is None or case[0] in chosen]
    # Before popdist looks after models; each instance trains a half of them alone.
    own = held[popdist.getInstanceIndex() :: popdist.getNumInstances()]
    expected = {name: trained(*model, None, mode)[0] for name, model, mode in own}
    found = {}
    for name, model, mode in held:
        weights, texts = trained(*model, way, mode)
        found[name] = {
            "digest": digest(b"".join(one.tobytes() for one in weights)),
            "names": sorted({code for text in texts for code in CODE.findall(text)}),
            "reasons": [text for text in texts if "not compared" in text],
        }
        if name in expected:
            pairs = zip(weights, expected[name], strict=True)
            found[name]["difference"] = max(float(np.abs(a - b).max()) for a, b in pairs)
    return found
