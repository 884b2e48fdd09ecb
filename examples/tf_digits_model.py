"""The network and the Estimator that both Estimator examples train."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Any

import digits
import numpy as np
import tensorflow.compat.v1 as tf

from popdist_tf import ipu

BATCH_SIZE = 32
LOWEST_ACCURACY = 0.9


def command_line_arguments() -> argparse.Namespace:
    """What the user chose."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-steps", type=int, default=600, help="updates (default 600)")
    parser.add_argument("--model-dir", help="folder of checkpoints (default: a new one)")
    parser.add_argument("--seed", type=int, default=1, help="of the shuffling (default 1)")
    parser.add_argument("--mnist", type=Path, help="folder with the four MNIST files")
    return parser.parse_args()


def training_data(args: argparse.Namespace) -> tf.data.Dataset:
    """The digits to train on, one by one."""
    return _data_set(digits.load(args.mnist).train)


def test_data(args: argparse.Namespace) -> tf.data.Dataset:
    """The digits to test on, in batches."""
    return _data_set(digits.load(args.mnist).test).batch(BATCH_SIZE)


def _data_set(part: digits.Part) -> tf.data.Dataset:
    labels = part.labels.astype(np.int32)
    return tf.data.Dataset.from_tensor_slices((part.images[..., np.newaxis], labels))


def model_fn(features: Any, labels: Any, mode: str) -> Any:
    """Builds the network for a mode."""
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(16, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    logits = model(features, training=mode == tf.estimator.ModeKeys.TRAIN)

    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"logits": logits})

    loss = tf.keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=tf.losses.Reduction.NONE
    )(labels, logits)
    # The optimizer divides by the number of workers; this divides by the batch of one.
    loss = tf.reduce_sum(loss) * (1.0 / BATCH_SIZE)
    if mode == tf.estimator.ModeKeys.EVAL:
        accuracy = tf.metrics.accuracy(labels, tf.argmax(logits, axis=-1))
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={"accuracy": accuracy})

    optimizer = tf.train.AdamOptimizer(learning_rate=0.003)
    variables = model.trainable_variables

    def host_model_fn(*host_gradients: tf.Tensor) -> tf.Operation:
        # Sums the gradients over the workers, and updates the weights, on the host.
        return optimizer.apply_gradients(zip(host_gradients, variables, strict=True))

    train_op = tf.identity(loss)
    gradients = [g for g, _ in optimizer.compute_gradients(loss, var_list=variables)]
    return ipu.ipu_estimator.IPUEstimatorSpec(
        mode=mode, loss=loss, train_op=train_op, host_call=(host_model_fn, gradients)
    )


def create_estimator(args: argparse.Namespace, strategy: Any) -> Any:
    """The Estimator, under a strategy."""
    ipu_options = ipu.config.IPUConfig()
    ipu_options.auto_select_ipus = 1
    config = ipu.ipu_run_config.RunConfig(
        session_config=tf.ConfigProto(allow_soft_placement=False),
        ipu_run_config=ipu.ipu_run_config.IPURunConfig(ipu_options=ipu_options),
        train_distribute=strategy,
        tf_random_seed=args.seed,
    )
    return ipu.ipu_estimator.IPUEstimator(
        config=config, model_fn=model_fn, model_dir=args.model_dir
    )


def check(classifier: Any, accuracy: float, rank: int, args: argparse.Namespace) -> int:
    """Prints what came out, the same on every worker; the exit code says whether it is good."""
    variables = hashlib.sha256()
    for name in sorted(classifier.get_variable_names()):
        variables.update(np.asarray(classifier.get_variable_value(name)).tobytes())
    step = classifier.get_variable_value("global_step")
    good = accuracy >= LOWEST_ACCURACY and step == args.num_steps
    print(
        f"worker {rank}: {step} updates, variables {variables.hexdigest()[:16]}, test accuracy "
        f"{accuracy:.2%} (at least {LOWEST_ACCURACY:.0%}: {'ok' if good else 'FAILED'})",
        flush=True,
    )
    return 0 if good else 1
