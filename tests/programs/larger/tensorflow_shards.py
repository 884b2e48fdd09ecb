"""Trains a small network whose layers are on two shards, on all replicas, as TensorFlow 1 does.

One training names the shard of each layer, the other leaves the division to the compiler. The
gradients are averaged over the replicas by the optimizer, and the strategy reduces nothing.
"""

import argparse
import json

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python import ipu
from tensorflow.python.ipu.distributed import popdist_strategy

import popdist
import popdist.tensorflow

tf.disable_v2_behavior()

STEPS, BATCH, RATE, SHARDS = 6, 8, 0.2, 2


def samples(replicas):
    """Points and distances, divided by steps and replicas."""
    rng = np.random.default_rng(11)
    points = rng.normal(size=(STEPS, replicas, BATCH, 3)).astype(np.float32)
    return points, np.linalg.norm(points, axis=-1, keepdims=True).astype(np.float32)


def layer(name, x, units):
    shape = [int(x.shape[-1]), units]
    start = tf.glorot_uniform_initializer(seed=len(name))
    with tf.variable_scope(name, use_resource=True):
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        return x @ tf.get_variable("kernel", shape, initializer=start) + bias


def loss_of(points, distances):
    with ipu.scopes.ipu_shard(0):
        hidden = tf.nn.tanh(layer("first", points, 8))
    with ipu.scopes.ipu_shard(1):
        return tf.reduce_mean(tf.square(layer("second", hidden, 1) - distances))


def loss_without_shards(points, distances):
    hidden = tf.nn.tanh(layer("first", points, 8))
    loss = tf.reduce_mean(tf.square(layer("second", hidden, 1) - distances))
    ipu.autoshard.automatic_sharding(SHARDS, points, loss)
    return loss


def train(build_loss):
    """The weights, and what the replicas of this instance have fed out."""
    tf.reset_default_graph()
    strategy = popdist_strategy.PopDistStrategy(add_ipu_cross_replica_reductions=False)
    local = popdist.getNumLocalReplicas()
    first = popdist.getReplicaIndexOffset()
    own = [
        one[:, first : first + local].reshape(-1, *one.shape[2:])
        for one in samples(popdist.getNumTotalReplicas())
    ]
    with strategy.scope():
        infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(tuple(own)))
        outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

        def step(points, distances):
            loss = build_loss(points, distances)
            descent = tf.train.GradientDescentOptimizer(RATE)
            optimizer = ipu.optimizers.CrossReplicaOptimizer(
                ipu.optimizers.ShardedOptimizer(descent)
            )
            with tf.control_dependencies([optimizer.minimize(loss)]):
                replica = ipu.replication_ops.replication_index()
                total = ipu.ops.cross_replica_ops.cross_replica_sum(loss)
                return outfeed.enqueue({"own": loss, "sum": total, "replica": replica})

        def device_code():
            with ipu.scopes.ipu_scope("/device:IPU:0"):
                return ipu.ipu_compiler.compile(
                    lambda: ipu.loops.repeat(STEPS, step, infeed_queue=infeed), []
                )

        run = strategy.experimental_run_v2(device_code)
        dequeued = outfeed.dequeue()
        with tf.Session() as session:
            session.run(infeed.initializer)
            session.run(tf.global_variables_initializer())
            session.run(strategy.experimental_local_results(run))
            fed_out = session.run(dequeued)
            weights = session.run({v.name: v.read_value() for v in tf.trainable_variables()})
    return weights, {name: value.reshape(STEPS, local).tolist() for name, value in fed_out.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", required=True)
    args = parser.parse_args()
    config = ipu.config.IPUConfig()
    devices = popdist.getNumIpusPerReplica()
    popdist.tensorflow.set_ipu_config(config, ipus_per_replica=devices)
    config.configure_ipu_system()
    answer = {"rank": popdist.getInstanceIndex()}
    for name, build_loss in ("named", loss_of), ("automatic", loss_without_shards):
        weights, answer[name] = train(build_loss)
        np.savez(f"{args.save}.{name}.{popdist.getInstanceIndex()}.npz", **weights)
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
