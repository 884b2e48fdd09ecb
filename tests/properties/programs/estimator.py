"""An Estimator whose ``model_fn`` has a model and an optimizer for each loss of the table."""

import tempfile

import tensorflow.compat.v1 as tf

import popdist
from popdist_tf import ipu
from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy
from tests.properties.keras_losses import LOSSES, Net
from tests.properties.programs.strategy_run import RATE, ROWS, UPDATES, batches, prepare
from tests.properties.torch_losses import FEW


@tf.autograph.experimental.do_not_convert  # which would read the source of each loss
def updates(features, labels):
    trained, total = [], 0.0
    for name in FEW:
        _, loss, part = LOSSES[name]
        net, optimizer = Net(part), tf.train.GradientDescentOptimizer(RATE)
        value = loss(net, features, labels)
        trained.append(optimizer.minimize(value, var_list=net.trainable_weights))
        total += value
    return tf.identity(total), tf.group(trained)


def model_fn(features, labels, mode):
    loss, trained = updates(features, labels)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=trained)


def main():
    prepare()
    tf.disable_v2_behavior()
    rank, size = popdist.getInstanceIndex(), popdist.getNumInstances()

    def input_fn():
        x, y = (part.reshape(-1, *part.shape[2:]) for part in batches(rank, size))
        data = tf.data.Dataset.from_tensor_slices((x, y))
        return data.batch(ROWS // size, drop_remainder=True).repeat()

    config = ipu.ipu_run_config.RunConfig(
        train_distribute=PopDistStrategy(), tf_random_seed=1, model_dir=tempfile.mkdtemp()
    )
    ipu.ipu_estimator.IPUEstimator(model_fn, config=config).train(input_fn, steps=UPDATES + 1)


if __name__ == "__main__":
    main()
