"""An Estimator with a host call under `IPUMultiWorkerStrategy`, with the calls of the guide.

TF_CONFIG says which worker this is.
"""

import argparse

import numpy as np
import tensorflow as tf
from tensorflow.python import ipu

BATCH = 64


def digits(mode, input_context=None):
    """This worker's share of MNIST, in an order of its own, without end."""
    del mode
    (pixels, names), _ = tf.keras.datasets.mnist.load_data()
    pixels = np.float32(pixels)[..., np.newaxis] / 255.0
    data = tf.data.Dataset.from_tensor_slices((pixels, np.int32(names)))
    if input_context is not None:
        shares, share = input_context.num_input_pipelines, input_context.input_pipeline_id
        data = data.shard(shares, share)
    data = data.shuffle(len(names)).cache()
    return data.batch(BATCH, drop_remainder=True).repeat()


def describe(features, labels, mode):
    modes = tf.estimator.ModeKeys
    sequence = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(8, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(8, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    scores = sequence(features, training=mode == modes.TRAIN)
    if mode == modes.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"scores": scores})
    each = tf.keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=tf.compat.v1.losses.Reduction.NONE
    )
    loss = tf.reduce_sum(each(labels, scores)) / BATCH
    if mode == modes.EVAL:
        right = tf.compat.v1.metrics.accuracy(labels, tf.argmax(scores, axis=-1))
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={"accuracy": right})
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
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = ipu.ipu_multi_worker_strategy.IPUMultiWorkerStrategy(
        resolver, variables_on_host=True
    )
    options = ipu.config.IPUConfig()
    options.auto_select_ipus = 1
    estimator = ipu.ipu_estimator.IPUEstimator(
        model_fn=describe,
        model_dir=given.model_dir,
        config=ipu.ipu_run_config.RunConfig(
            session_config=tf.ConfigProto(allow_soft_placement=False),
            ipu_run_config=ipu.ipu_run_config.IPURunConfig(ipu_options=options),
            train_distribute=strategy,
        ),
    )
    tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(digits, max_steps=given.num_steps),
        tf.estimator.EvalSpec(digits),
    )


main()
