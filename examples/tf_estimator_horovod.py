"""Trains an Estimator on handwritten digits over Horovod, with the updates on the host.

    poprun --num-instances 2 python examples/tf_estimator_horovod.py --model-dir /tmp/model
    mpirun -np 2 -H localhost:2 python examples/tf_estimator_horovod.py --model-dir /tmp/model

Needs TensorFlow 2.15, the last with estimators. The same network and loop as in
`tf_estimator_grpc.py`; only the strategy, and who divides the data, are different.
"""

from __future__ import annotations

import sys

import tensorflow.compat.v1 as tf
from tf_digits_model import (
    BATCH_SIZE,
    check,
    command_line_arguments,
    create_estimator,
    test_data,
    training_data,
)

from popdist_tf.ipu import horovod as hvd
from popdist_tf.ipu.horovod import ipu_horovod_strategy


def main() -> int:
    """Trains; the exit code says whether every check held."""
    args = command_line_arguments()
    tf.disable_v2_behavior()

    # Initialise the Horovod runtime, before anything asks for ranks.
    hvd.init()
    strategy = ipu_horovod_strategy.IPUHorovodStrategy(variables_on_host=True)

    def input_fn() -> tf.data.Dataset:
        digits = training_data(args).shard(hvd.size(), hvd.rank())
        return digits.shuffle(1500, seed=args.seed).batch(BATCH_SIZE, drop_remainder=True).repeat()

    classifier = create_estimator(args, strategy)
    classifier.train(input_fn=input_fn, max_steps=args.num_steps)

    accuracy = classifier.evaluate(lambda: test_data(args))["accuracy"]
    return check(classifier, accuracy, hvd.rank(), args)


if __name__ == "__main__":
    sys.exit(main())
