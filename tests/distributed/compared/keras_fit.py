"""`fit` of Keras with the batch size of one process, and the loss that the command line names."""

import sys

import numpy as np
import tensorflow as tf

import popdist_tf.keras as hvd

LOSSES = {
    "mean": tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    "rmse": lambda y, scores: tf.sqrt(
        tf.reduce_mean(tf.square(scores - tf.one_hot(tf.cast(tf.reshape(y, [-1]), tf.int32), 4)))
    ),
}

hvd.init()
tf.keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x, y = rng.normal(size=(96, 6)).astype("float32"), rng.integers(0, 4, 96)
own = slice(hvd.rank(), None, hvd.size())
model = tf.keras.Sequential(
    [
        tf.keras.layers.Input((6,)),
        tf.keras.layers.Dense(5, "tanh"),
        tf.keras.layers.Dense(4),
    ]
)
model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)), LOSSES[sys.argv[1]])
model.fit(
    x[own],
    y[own],
    batch_size=12,
    shuffle=False,
    epochs=3,
    verbose=0,
    callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
)
