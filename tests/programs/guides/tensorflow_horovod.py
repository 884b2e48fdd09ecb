"""An Estimator with a host call under `IPUHorovodStrategy`, with the calls of the guide."""

import argparse

import numpy as np
import tensorflow as tf
from tensorflow.python import ipu
from tensorflow.python.ipu import horovod as hvd
from tensorflow.python.ipu.horovod import ipu_horovod_strategy

BATCH = 64


def digits(mode):
    """This process's share of MNIST, in an order of its own, without end."""
    del mode
    (pixels, names), _ = tf.keras.datasets.mnist.load_data()
    pixels = np.float32(pixels)[..., np.newaxis] / 255.0
    data = tf.data.Dataset.from_tensor_slices((pixels, np.int32(names)))
    data = data.shard(hvd.size(), hvd.rank()).shuffle(len(names)).cache()
    return data.batch(BATCH, drop_remainder=True).repeat()


def describe(features, labels, mode):
    sequence = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(8, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(8, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    scores = sequence(features, training=mode == tf.estimator.ModeKeys.TRAIN)
    each = tf.keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=tf.compat.v1.losses.Reduction.NONE
    )
    loss = tf.reduce_sum(each(labels, scores)) / BATCH
    optimizer = tf.compat.v1.train.AdamOptimizer()
    weights = sequence.trainable_variables
    gradients = [gradient for gradient, _ in optimizer.compute_gradients(loss, weights)]

    def update_on_host(*reduced):
        return optimizer.apply_gradients(zip(reduced, weights))

    return ipu.ipu_estimator.IPUEstimatorSpec(
        mode=mode,
        loss=loss,
        train_op=tf.identity(loss),
        host_call=(update_on_host, gradients),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-steps", type=int, default=10000)
    parser.add_argument("--model-dir")
    given = parser.parse_args()

    tf.logging.set_verbosity(tf.logging.INFO)
    hvd.init()
    options = ipu.config.IPUConfig()
    options.auto_select_ipus = 1
    estimator = ipu.ipu_estimator.IPUEstimator(
        model_fn=describe,
        model_dir=given.model_dir,
        config=ipu.ipu_run_config.RunConfig(
            session_config=tf.ConfigProto(allow_soft_placement=False),
            ipu_run_config=ipu.ipu_run_config.IPURunConfig(ipu_options=options),
            train_distribute=ipu_horovod_strategy.IPUHorovodStrategy(variables_on_host=True),
        ),
    )
    estimator.train(input_fn=digits, max_steps=given.num_steps)


main()
