"""Trains an Estimator on handwritten digits over TensorFlow's own ring collectives (gRPC).

    poprun --num-instances 2 --tf-config yes python examples/tf_estimator_grpc.py --model-dir /tmp/m

or by hand, in two terminals (with index 1 in the second):

    TF_CONFIG='{"cluster": {"worker": ["localhost:3737", "localhost:3738"]},
                "task": {"type": "worker", "index": 0}}' \
        python examples/tf_estimator_grpc.py --model-dir /tmp/m

Needs TensorFlow 2.15, the last with estimators.
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

from popdist_tf.ipu import ipu_multi_worker_strategy


def main() -> int:
    """Trains; the exit code says whether every check held."""
    args = command_line_arguments()
    tf.disable_v2_behavior()

    # The workers are described by the environment variable TF_CONFIG.
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = ipu_multi_worker_strategy.IPUMultiWorkerStrategy(cluster, variables_on_host=True)

    def input_fn(input_context: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
        digits = training_data(args)
        if input_context:
            digits = digits.shard(
                input_context.num_input_pipelines, input_context.input_pipeline_id
            )
        return digits.shuffle(1500, seed=args.seed).batch(BATCH_SIZE, drop_remainder=True).repeat()

    classifier = create_estimator(args, strategy)
    tf.estimator.train_and_evaluate(
        classifier,
        train_spec=tf.estimator.TrainSpec(input_fn=input_fn, max_steps=args.num_steps),
        eval_spec=tf.estimator.EvalSpec(input_fn=lambda: test_data(args)),
    )

    # The coordinator evaluates on a worker of its own, if there is one; so each looks here itself.
    accuracy = classifier.evaluate(lambda: test_data(args))["accuracy"]
    return check(classifier, accuracy, cluster.task_id or 0, args)


if __name__ == "__main__":
    sys.exit(main())
