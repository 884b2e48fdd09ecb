"""Trains a convolutional network as a pipeline of stages, in the manner of TensorFlow 1.

Every update takes several micro-batches through the stages, on every replica of every instance.
"""

import argparse
import hashlib
import json

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits
from tensorflow.python import ipu
from tensorflow.python.ipu import pipelining_ops
from tensorflow.python.ipu.horovod import popdist_strategy

import popdist
import popdist.tensorflow

tf.disable_v2_behavior()

MICRO_BATCHES, UPDATES = 3, 4
BATCH = 32 // popdist.getNumTotalReplicas()
RATE = 0.3


def samples(replicas):
    """Digits and labels, divided by micro-batches and replicas."""
    digits = load_digits()
    count = UPDATES * MICRO_BATCHES * replicas * BATCH
    images = (digits.images[:count, ..., np.newaxis] / 16).astype(np.float32)
    labels = digits.target[:count].astype(np.int32)
    return [one.reshape(-1, replicas, BATCH, *one.shape[1:]) for one in (images, labels)]


def variable(name, shape):
    start = tf.glorot_uniform_initializer(seed=len(name))
    return tf.get_variable(name, shape, initializer=start, use_resource=True)


def first_stage(images, labels):
    x = tf.nn.conv2d(images, variable("first", [3, 3, 1, 4]), 1, "SAME")
    return tf.nn.relu(x), labels


def second_stage(x, labels):
    x = tf.nn.relu(tf.nn.conv2d(x, variable("second", [3, 3, 4, 8]), 2, "SAME"))
    return tf.reshape(x, [BATCH, 4 * 4 * 8]), labels


def last_stage(x, labels):
    scores = x @ variable("scores", [4 * 4 * 8, 10])
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores)
    return tf.reduce_mean(loss)


def optimizer_function(loss):
    # A mean over micro-batches and replicas; the strategy adds the replicas' gradients up.
    share = MICRO_BATCHES * popdist.getNumTotalReplicas()
    optimizer = tf.train.GradientDescentOptimizer(RATE)
    return pipelining_ops.OptimizerFunctionOutput(optimizer, loss / share)


def train():
    config = ipu.config.IPUConfig()
    devices = popdist.getNumIpusPerReplica()
    popdist.tensorflow.set_ipu_config(config, ipus_per_replica=devices, configure_device=False)
    first, local = popdist.getReplicaIndexOffset(), popdist.getNumLocalReplicas()
    own = [
        part[:, first : first + local].reshape(-1, *part.shape[2:])
        for part in samples(popdist.getNumTotalReplicas())
    ]
    strategy = popdist_strategy.PopDistStrategy()
    with strategy.scope():
        dataset = tf.data.Dataset.from_tensor_slices(tuple(own))
        infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(dataset)
        outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

        def pipeline():
            return pipelining_ops.pipeline(
                computational_stages=[first_stage, second_stage, last_stage],
                gradient_accumulation_count=MICRO_BATCHES,
                repeat_count=UPDATES,
                infeed_queue=infeed,
                outfeed_queue=outfeed,
                optimizer_function=optimizer_function,
                device_mapping=[0, 1, 2],
                pipeline_schedule=pipelining_ops.PipelineSchedule.Interleaved,
                recomputation_mode=pipelining_ops.RecomputationMode.Auto,
                name="pipeline",
            )

        def device_code():
            with ipu.scopes.ipu_scope("/device:IPU:0"):
                return ipu.ipu_compiler.compile(pipeline)

        run = strategy.experimental_run_v2(device_code)
        dequeued = outfeed.dequeue()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run(infeed.initializer)
            session.run(strategy.experimental_local_results(run))
            losses = np.ravel(session.run(dequeued)).tolist()
            values = session.run({v.name: v.read_value() for v in tf.trainable_variables()})
    return losses, values


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", required=True)
    args = parser.parse_args()
    losses, values = train()
    if popdist.getInstanceIndex() == 0:
        np.savez(args.save, **values)
    digest = hashlib.sha256(b"".join(values[name].tobytes() for name in sorted(values)))
    answer = {"rank": popdist.getInstanceIndex(), "losses": losses, "digest": digest.hexdigest()}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
