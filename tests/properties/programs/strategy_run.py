"""A loop of ``strategy.run``: each loss of the table has a model and an optimizer."""

import numpy as np
import tensorflow as tf

import popdist
from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy
from tests.properties.keras_losses import CLASSES, LOSSES, WIDTH, Net

ROWS, UPDATES, RATE = 48, 1, 0.05


def batches(rank, size):
    """An instance's rows of the global batches."""
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(UPDATES, ROWS, WIDTH)), rng.integers(0, CLASSES, (UPDATES, ROWS))
    mine = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    return x[:, mine], y[:, mine]


def prepare():
    """Double precision and one thread."""
    tf.keras.backend.set_floatx("float64")
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)


def main():
    prepare()
    strategy = PopDistStrategy()
    for _, loss, part in LOSSES.values():
        with strategy.scope():
            net, optimizer = Net(part), tf.keras.optimizers.SGD(RATE)

        def step(x, y, loss=loss, net=net, optimizer=optimizer):
            with tf.GradientTape() as tape:
                value = loss(net, x, y) / strategy.num_replicas_in_sync
            found = tape.gradient(value, net.trainable_weights)
            pairs = zip(found, net.trainable_weights, strict=True)
            optimizer.apply_gradients([pair for pair in pairs if pair[0] is not None])

        rank, size = popdist.getInstanceIndex(), popdist.getNumInstances()
        for batch in zip(*batches(rank, size), strict=True):
            strategy.run(step, args=tuple(map(tf.constant, batch)))


if __name__ == "__main__":
    main()
