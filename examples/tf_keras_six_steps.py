"""Six steps from a Keras program to a distributed one, with the names that Horovod made known.

    mpirun -np 2 python3 examples/tf_keras_six_steps.py
    poprun --num-instances 2 --num-replicas 2 python3 examples/tf_keras_six_steps.py

The same with Keras 2 and Keras 3. Runs alone, too.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import digits
import tensorflow as tf
from tf_keras_model import check, network

import popdist_tf.keras as hvd


def main() -> int:
    """Trains, tests and checks; the exit code says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks (default 64)")
    parser.add_argument("--mnist", type=Path, help="folder with the four MNIST files")
    args = parser.parse_args()

    # 1. Start Horovod.
    hvd.init()

    # 2. Divide the batch.
    local_batch_size = args.batch_size // hvd.size()

    # 3. One GPU for each rank, where there are any.
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, enable=True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    # 4. Divide the data, into equal parts.
    data = digits.load(args.mnist)
    per_rank = len(data.train) // hvd.size()
    own = slice(hvd.rank() * per_rank, (hvd.rank() + 1) * per_rank)

    # 5. Reduce the gradients before every update.
    model = network(data.side)
    model.compile(
        optimizer=hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.003)),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

    # 6. Start all ranks from the weights of the first, and average what they report.
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ]
    history = model.fit(
        data.train.images[own][..., None],
        data.train.labels[own],
        batch_size=local_batch_size,
        epochs=args.epochs,
        callbacks=callbacks,
        verbose=0,
    ).history
    return check(model, data.test, history["loss"][-1])


if __name__ == "__main__":
    sys.exit(main())
