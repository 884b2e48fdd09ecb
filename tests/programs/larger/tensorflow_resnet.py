"""Trains a small residual network on images like CIFAR's, in the manner of TensorFlow 1.

The loop is compiled once; the optimizer averages the gradients of all replicas of all instances,
and every replica normalises its own batches.
"""

import argparse
import hashlib
import json

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python import ipu
from tensorflow.python.ipu import horovod as hvd
from tensorflow.python.ipu.horovod import ipu_multi_replica_strategy
from tensorflow.python.ipu.ops import cross_replica_ops
from tensorflow.python.ipu.optimizers import CrossReplicaOptimizer

import popdist
import popdist.tensorflow

tf.disable_v2_behavior()

CLASSES, SIZE, BATCH = 4, 12, 6
ITERATIONS, RUNS = 3, 2
RATES = (0.1, 0.05)


def samples(replicas):
    """Images and labels, divided by updates and replicas: a pattern for each class, and noise."""
    rng = np.random.RandomState(0)
    patterns = rng.normal(size=(CLASSES, SIZE, SIZE, 3))
    labels = rng.randint(CLASSES, size=(ITERATIONS * RUNS, replicas, BATCH)).astype(np.int32)
    images = patterns[labels] + 0.5 * rng.normal(size=(*labels.shape, SIZE, SIZE, 3))
    return images.astype(np.float32), labels


def create_dataset():
    """The elements of this instance, in the order in which its replicas take them."""
    first, local = popdist.getReplicaIndexOffset(), popdist.getNumLocalReplicas()
    parts = samples(popdist.getNumTotalReplicas())
    own = [part[:, first : first + local].reshape(-1, *part.shape[2:]) for part in parts]
    return tf.data.Dataset.from_tensor_slices(tuple(own)).repeat()


def convolution(x, filters, stride, name):
    with tf.variable_scope(name):
        start = tf.variance_scaling_initializer(2.0, seed=7)
        shape = [3, 3, int(x.shape[-1]), filters]
        kernel = tf.get_variable("kernel", shape, initializer=start)
        x = tf.nn.conv2d(x, kernel, stride, "SAME")
        return tf.layers.batch_normalization(x, momentum=0.8, training=True, fused=True)


def block(x, filters, stride, name):
    with tf.variable_scope(name):
        around = x
        if stride > 1:
            around = tf.pad(x[:, ::stride, ::stride], [[0, 0]] * 3 + [[0, filters - x.shape[-1]]])
        x = tf.nn.relu(convolution(x, filters, stride, "first"))
        return tf.nn.relu(convolution(x, filters, 1, "second") + around)


def network(images):
    with tf.variable_scope("resnet", use_resource=True, reuse=tf.AUTO_REUSE):
        x = tf.nn.relu(convolution(images, 4, 1, "stem"))
        x = block(block(x, 4, 1, "block1"), 8, 2, "block2")
        x = tf.reduce_mean(x, [1, 2])
        start = tf.glorot_uniform_initializer(seed=3)
        return x @ tf.get_variable("scores", [8, CLASSES], initializer=start)


def loss_of(images, labels):
    scores = network(images)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores)
    decayed = [tf.nn.l2_loss(v) for v in tf.trainable_variables() if "kernel" in v.name]
    return tf.reduce_mean(loss) + 1e-3 * tf.add_n(decayed)


def train():
    hvd.init()
    config = ipu.config.IPUConfig()
    config.norms.use_stable_statistics = True
    devices = popdist.getNumIpusPerReplica()
    config = popdist.tensorflow.set_ipu_config(config, ipus_per_replica=devices)
    config.configure_ipu_system()
    strategy = ipu_multi_replica_strategy.IPUMultiReplicaStrategy(
        add_ipu_cross_replica_reductions=False
    )
    with strategy.scope():
        infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(create_dataset())
        outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
        rate = tf.placeholder(tf.float32, [])

        def training_step(images, labels):
            loss = loss_of(images, labels)
            optimizer = CrossReplicaOptimizer(tf.train.MomentumOptimizer(rate, momentum=0.9))
            everywhere = cross_replica_ops.cross_replica_mean(loss)
            return outfeed.enqueue({"loss": everywhere}), optimizer.minimize(loss)

        def device_code():
            with ipu.scopes.ipu_scope("/device:IPU:0"):
                return ipu.ipu_compiler.compile(
                    lambda: ipu.loops.repeat(ITERATIONS, training_step, [], infeed)
                )

        run = strategy.experimental_run_v2(device_code)
        dequeued = outfeed.dequeue()
        ipu.utils.move_variable_initialization_to_cpu()
        losses = []
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run(infeed.initializer)
            for value in RATES:
                session.run(strategy.experimental_local_results(run), {rate: value})
                seen = session.run(dequeued)["loss"].reshape(ITERATIONS, -1)
                losses += [float(one) for one in seen[:, 0]]
            values = session.run({v.name: v.read_value() for v in tf.global_variables()})
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
