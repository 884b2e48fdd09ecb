"""A session of TensorFlow 1: each loss of the table has a model and a CrossReplicaOptimizer."""

import tensorflow.compat.v1 as tf

import popdist
from popdist_tf import ipu
from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy
from tests.properties.keras_losses import LOSSES, WIDTH, Net
from tests.properties.programs.strategy_run import RATE, ROWS, batches, prepare
from tests.properties.torch_losses import FEW


def step(x, y):
    trained = []
    for name in FEW:
        _, loss, part = LOSSES[name]
        net, descent = Net(part), tf.train.GradientDescentOptimizer(RATE)
        optimizer = ipu.optimizers.CrossReplicaOptimizer(descent)
        trained.append(optimizer.minimize(loss(net, x, y), var_list=net.trainable_weights))
    return tf.group(trained)


def main():
    prepare()
    tf.disable_v2_behavior()
    tf.set_random_seed(1)
    rank, size = popdist.getInstanceIndex(), popdist.getNumInstances()
    x = tf.placeholder(tf.float64, [ROWS // size, WIDTH])
    y = tf.placeholder(tf.int64, [ROWS // size])
    with PopDistStrategy(add_ipu_cross_replica_reductions=False).scope():
        trained = tf.distribute.get_strategy().experimental_run_v2(step, (x, y))
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            own = [*zip(*batches(rank, size), strict=True)]
            for rows, labels in [*own, own[0]]:
                session.run(trained, {x: rows, y: labels})


if __name__ == "__main__":
    main()
