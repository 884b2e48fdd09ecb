"""Trains a network of digits in a loop that is compiled once, in the manner of TensorFlow 1.

Samples come in by an infeed queue, losses go out by an outfeed queue, and a session runs the loop.
Only the first two lines of imports of TensorFlow differ from the days of TensorFlow 1.
"""

import argparse
import hashlib
import json

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits
from tensorflow.python import ipu
from tensorflow.python.ipu import horovod as hvd
from tensorflow.python.ipu.horovod import popdist_strategy
from tensorflow.python.ipu.scopes import ipu_scope

import popdist
import popdist.tensorflow

tf.disable_v2_behavior()

CLASSES = 10


def command_line_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--iterations", type=int, default=5, help="updates of a run of the loop")
    parser.add_argument("--epochs", type=int, default=4, help="runs of the loop")
    parser.add_argument("--learning-rate", type=float, default=0.5)
    parser.add_argument("--save")
    return parser.parse_args()


def create_dataset(args):
    """The batches of this instance's replicas, of each update their share."""
    digits = load_digits()
    images = (digits.data / 16).astype(np.float32)
    labels = digits.target.astype(np.int32)
    updates = args.iterations * args.epochs
    replicas, first = popdist.getNumTotalReplicas(), popdist.getReplicaIndexOffset()
    samples = updates * args.batch_size * replicas
    order = np.random.RandomState(0).permutation(len(labels))[:samples]
    own = order.reshape(updates, replicas, args.batch_size)
    own = own[:, first : first + popdist.getNumLocalReplicas()].reshape(-1)
    dataset = tf.data.Dataset.from_tensor_slices((images[own], labels[own]))
    return dataset.batch(args.batch_size, drop_remainder=True).repeat()


def dense(x, units, name, activation=None):
    with tf.variable_scope(name, use_resource=True):
        start = tf.glorot_uniform_initializer(seed=1)
        kernel = tf.get_variable("kernel", [int(x.shape[-1]), units], initializer=start)
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
    x = tf.nn.bias_add(tf.matmul(x, kernel), bias)
    return x if activation is None else activation(x)


def model(images):
    with tf.variable_scope("model"):
        hidden = dense(images, 32, "hidden", tf.nn.relu)
        return dense(hidden, CLASSES, "scores")


def main():
    args = command_line_arguments()
    hvd.init()
    config = ipu.config.IPUConfig()
    config.optimizations.maximum_cross_replica_sum_buffer_size = 1000000
    config.compilation_poplar_options = {"target.syncReplicasIndependently": "true"}
    devices = popdist.getNumIpusPerReplica()
    popdist.tensorflow.set_ipu_config(config, ipus_per_replica=devices)
    config.configure_ipu_system()
    ipu.utils.reset_ipu_seed(1)

    strategy = popdist_strategy.PopDistStrategy()
    with strategy.scope():
        infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(create_dataset(args))
        outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

        def training_step(total, images, labels):
            scores = model(images)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores)
            )
            # The gradients of all replicas are added up.
            optimizer = tf.train.MomentumOptimizer(args.learning_rate, momentum=0.9)
            train_op = optimizer.minimize(loss / popdist.getNumTotalReplicas())
            everywhere = ipu.ops.cross_replica_ops.cross_replica_sum(loss)
            everywhere /= popdist.getNumTotalReplicas()
            with tf.control_dependencies([train_op]):
                return total + loss, outfeed.enqueue({"loss": everywhere, "own": loss})

        def training_loop():
            return ipu.loops.repeat(args.iterations, training_step, [0.0], infeed)

        def device_code():
            with ipu_scope("/device:IPU:0"):
                return ipu.ipu_compiler.compile(training_loop, [])

        (total,) = strategy.experimental_run_v2(device_code)
        mean_total = strategy.reduce(tf.distribute.ReduceOp.MEAN, total, axis=None)
        dequeued = outfeed.dequeue()
        ipu.utils.move_variable_initialization_to_cpu()
        saver = tf.train.Saver()

        losses, own, totals = [], [], []
        session_config = tf.ConfigProto(allow_soft_placement=True)
        with tf.Session(config=session_config) as session:
            session.run(tf.global_variables_initializer())
            session.run(infeed.initializer)
            for _ in range(args.epochs):
                totals.append(float(session.run(mean_total)))
                seen = session.run(dequeued)
                by_replica = {name: x.reshape(args.iterations, -1) for name, x in seen.items()}
                losses += by_replica["loss"][:, 0].tolist()
                own += by_replica["own"].tolist()
            values = session.run({v.name: v.read_value() for v in tf.global_variables()})
            if args.save and popdist.getInstanceIndex() == 0:
                saver.save(session, args.save)
                np.savez(f"{args.save}.npz", **values)
            session.run(infeed.deleter)

    digest = hashlib.sha256(b"".join(values[name].tobytes() for name in sorted(values)))
    answer = {
        "rank": popdist.getInstanceIndex(),
        "losses": losses,
        "own": own,
        "totals": totals,
        "digest": digest.hexdigest(),
    }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
