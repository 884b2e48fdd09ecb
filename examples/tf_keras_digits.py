"""Trains a network on handwritten digits with Keras under PopDistStrategy.

    poprun --num-instances 2 --num-replicas 4 python3 examples/tf_keras_digits.py

Every instance reads its own share of the digits; the strategy does the rest. Runs alone, too.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import digits
import tensorflow as tf
from tf_keras_model import check, network

import popdist
import popdist.tensorflow
from popdist_tf import ipu
from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy


def main() -> int:
    """Trains, tests and checks; the exit code says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=64, help="over all replicas (default 64)")
    parser.add_argument("--mnist", type=Path, help="folder with the four MNIST files")
    args = parser.parse_args()

    config = ipu.config.IPUConfig()
    popdist.tensorflow.set_ipu_config(config, ipus_per_replica=1)
    config.configure_ipu_system()
    strategy = PopDistStrategy()

    data = digits.load(args.mnist)
    instances, instance = popdist.getNumInstances(), popdist.getInstanceIndex()
    own = slice(instance, len(data.train) // instances * instances, instances)
    samples = (data.train.images[own][..., None], data.train.labels[own])
    dataset = (
        tf.data.Dataset.from_tensor_slices(samples)
        .shuffle(len(samples[1]), seed=1)
        .batch(args.batch_size // popdist.getNumTotalReplicas(), drop_remainder=True)
    )

    with strategy.scope():
        tf.keras.utils.set_random_seed(1)
        model = network(data.side)
        model.compile(
            optimizer=tf.keras.optimizers.Adam(0.003),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = model.fit(dataset, epochs=args.epochs, verbose=0).history
    return check(model, data.test, history["loss"][-1])


if __name__ == "__main__":
    sys.exit(main())
