"""Fits a Keras model to digits, many steps in one execution, on every replica of every instance.

Under poprun the strategy joins the instances; alone, the program uses the one for a single machine.
"""

import argparse
import hashlib
import json

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow.python import ipu

import popdist
import popdist.tensorflow

TRAINING_DIGITS = 1536
TEST_DIGITS = 256


def command_line_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16, help="samples of a replica's step")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--save")
    return parser.parse_args()


def configure():
    config = ipu.config.IPUConfig()
    if popdist.isPopdistEnvSet():
        devices = popdist.getNumIpusPerReplica()
        popdist.tensorflow.set_ipu_config(config, ipus_per_replica=devices)
    else:
        config.auto_select_ipus = 1
    config.device_connection.type = ipu.utils.DeviceConnectionType.ON_DEMAND
    config.allow_recompute = True
    config.configure_ipu_system()


def create_strategy():
    if popdist.isPopdistEnvSet():
        from tensorflow.python.ipu.distributed.popdist_strategy import PopDistStrategy

        return PopDistStrategy()
    return ipu.ipu_strategy.IPUStrategy()


def create_datasets(args):
    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    images = (digits.images[order] / 16).astype(np.float32)[..., np.newaxis]
    labels = digits.target[order].astype(np.int32)
    split = TRAINING_DIGITS, TRAINING_DIGITS + TEST_DIGITS

    def batches(part):
        dataset = tf.data.Dataset.from_tensor_slices((images[part], labels[part]))
        return dataset.batch(args.batch_size, drop_remainder=True)

    training, test = batches(slice(split[0])), batches(slice(*split))
    # Batch by batch in turn, so that a step's batches are the same however replicas are spread.
    total, local = popdist.getNumTotalReplicas(), popdist.getNumLocalReplicas()
    first = popdist.getReplicaIndexOffset()

    def own(dataset):
        turns = dataset.batch(total, drop_remainder=True)
        turns = turns.map(lambda x, y: (x[first : first + local], y[first : first + local]))
        return turns.unbatch()

    return own(training), own(test)


def create_model():
    return tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(8, 3, activation="relu", input_shape=(8, 8, 1)),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(10),
        ]
    )


def main():
    args = command_line_arguments()
    configure()
    strategy = create_strategy()
    training, test = create_datasets(args)
    steps = TRAINING_DIGITS // (args.batch_size * popdist.getNumTotalReplicas())
    tf.keras.utils.set_random_seed(1 + popdist.getInstanceIndex())
    with strategy.scope():
        model = create_model()
        model.compile(
            optimizer=tf.keras.optimizers.Adam(args.learning_rate),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=steps,
        )
        schedule = tf.keras.callbacks.LearningRateScheduler(
            lambda epoch: args.learning_rate * 0.7**epoch
        )
        history = model.fit(training, epochs=args.epochs, verbose=0, callbacks=[schedule]).history
        model.compile(
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=1,
        )
        loss, accuracy = model.evaluate(test, verbose=0)
    weights = model.get_weights()
    if args.save and popdist.getInstanceIndex() == 0:
        model.save_weights(args.save)
        np.savez(f"{args.save}.npz", *weights)
    answer = {
        "rank": popdist.getInstanceIndex(),
        "losses": history["loss"],
        "training_accuracies": history["accuracy"],
        "loss": loss,
        "accuracy": accuracy,
        "digest": hashlib.sha256(b"".join(array.tobytes() for array in weights)).hexdigest(),
    }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
