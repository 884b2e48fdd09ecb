"""Trains an ONNX network of digits over Horovod; rank 0 tests it after every epoch.

Every rank has a training session, and rank 0 has an inference session beside it. An epoch begins
with rank 0's weights for everybody. It ends with the weights in a file, from which the inference
session gets them. The training session reads whole steps from arrays; the inference session is fed
micro-batch by micro-batch, by callbacks.
"""

import argparse
import hashlib
import json
from pathlib import Path

import horovod.popart as hvd
import numpy as np
import popart
from sklearn.datasets import load_digits

CLASSES = 10
PIXELS = 64
TRAINING_DIGITS = 1536
TEST_DIGITS = 256


def command_line_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--batches-per-step", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=0.2)
    parser.add_argument("--folder", type=Path, required=True)
    return parser.parse_args()


def load():
    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    images = (digits.data[order] / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int32)
    split = TRAINING_DIGITS
    test = slice(split, split + TEST_DIGITS)
    return (images[:split], labels[:split]), (images[test], labels[test])


def create_model(batch_size):
    builder = popart.Builder(opsets={"ai.onnx": 10, "ai.graphcore": 1})
    random = np.random.RandomState(hvd.rank())  # other weights on every rank, until they are sent
    images = builder.addInputTensor(popart.TensorInfo("FLOAT", [batch_size, PIXELS]), "images")
    labels = builder.addInputTensor(popart.TensorInfo("INT32", [batch_size]), "labels")
    x = images
    for name, inputs, outputs in (("hidden", PIXELS, 32), ("scores", 32, CLASSES)):
        with builder.nameScope(name):
            scale = np.sqrt(2 / inputs)
            weight = builder.addInitializedInputTensor(
                random.normal(0, scale, [inputs, outputs]).astype(np.float32), "weight"
            )
            bias = builder.addInitializedInputTensor(np.zeros(outputs, np.float32), "bias")
            x = builder.aiOnnx.gemm([x, weight, bias])
        if name == "hidden":
            x = builder.aiOnnx.relu([x])
    probabilities = builder.aiOnnx.softmax([x])
    loss = builder.aiGraphcore.nllloss([probabilities, labels], popart.ReductionType.Mean)
    builder.addOutputTensor(probabilities)
    return builder.getModelProto(), images, labels, probabilities, loss


def get_device():
    device = popart.DeviceManager().acquireAvailableDevice(1)
    if device is None:
        raise OSError("Failed to acquire a device.")
    return device


class Validation:
    """Counts right answers, with the weights of a file."""

    def __init__(self, proto, images, labels, probabilities, batch_size):
        options = popart.SessionOptions()
        options.constantWeights = False
        self.batches = TEST_DIGITS // batch_size
        self.session = popart.InferenceSession(
            fnModel=proto,
            dataFlow=popart.DataFlow(self.batches, {probabilities: popart.AnchorReturnType("All")}),
            deviceInfo=get_device(),
            userOptions=options,
        )
        self.session.prepareDevice()
        self.ids = images, labels
        self.batch_size = batch_size

    def accuracy(self, model_file, images, labels):
        self.session.resetHostWeights(model_file)
        self.session.weightsFromHost()
        inputs = {self.ids[0]: images, self.ids[1]: labels}
        position = dict.fromkeys(inputs, 0)
        outputs = []

        def give(name, is_prefetch):
            begin = position[name]
            if begin == len(labels):
                return None
            return np.ascontiguousarray(inputs[name][begin : begin + self.batch_size])

        def given(name):
            position[name] += self.batch_size

        def take(name):
            outputs.append(np.empty([self.batch_size, CLASSES], np.float32))
            return outputs[-1]

        def taken(name):
            pass

        self.session.run(popart.PyStepIOCallback(give, given, take, taken))
        return float((np.concatenate(outputs).argmax(1) == labels).mean())


def main():
    args = command_line_arguments()
    hvd.init()
    training_data, test_data = load()
    images, labels = (array[hvd.rank() :: hvd.size()] for array in training_data)

    proto, images_id, labels_id, probabilities, loss = create_model(args.batch_size)
    options = popart.SessionOptions()
    options.hostAllReduce = True
    optimizer = popart.ConstSGD(args.learning_rate)
    data_flow = popart.DataFlow(
        args.batches_per_step,
        {loss: popart.AnchorReturnType("All"), probabilities: popart.AnchorReturnType("Final")},
    )
    session = popart.TrainingSession(
        fnModel=proto,
        loss=loss,
        deviceInfo=get_device(),
        optimizer=optimizer,
        dataFlow=data_flow,
        patterns=popart.Patterns(popart.PatternsLevel.Default),
        userOptions=options,
    )
    session.prepareDevice()
    anchors = session.initAnchorArrays()
    validation = None
    if hvd.rank() == 0:
        validation = Validation(proto, images_id, labels_id, probabilities, args.batch_size)

    distributed_optimizer = hvd.DistributedOptimizer(optimizer, session, options)
    distributed_optimizer.insert_host_allreduce()

    steps = len(labels) // (args.batches_per_step * args.batch_size)
    shape = (steps, args.batches_per_step, args.batch_size)
    images = np.ascontiguousarray(images[: np.prod(shape)]).reshape(*shape, PIXELS)
    labels = np.ascontiguousarray(labels[: np.prod(shape)]).reshape(shape)
    model_file = str(args.folder / "model.onnx")
    losses, accuracies = [], []
    for _ in range(args.epochs):
        hvd.broadcast_weights(session, root_rank=0)
        session.weightsFromHost()
        for step in range(steps):
            stepio = popart.PyStepIO({images_id: images[step], labels_id: labels[step]}, anchors)
            session.run(stepio)
            losses.append(float(anchors[loss].mean()))
        session.weightsToHost()
        if hvd.rank() == 0:
            session.modelToHost(model_file)
            accuracies.append(validation.accuracy(model_file, *test_data))

    weights = {
        "hidden/weight": np.empty([PIXELS, 32], np.float32),
        "hidden/bias": np.empty(32, np.float32),
        "scores/weight": np.empty([32, CLASSES], np.float32),
        "scores/bias": np.empty(CLASSES, np.float32),
    }
    session.readWeights(popart.PyWeightsIO(weights))
    digest = hashlib.sha256(b"".join(array.tobytes() for array in weights.values())).hexdigest()
    answer = {"rank": hvd.rank(), "losses": losses, "accuracies": accuracies, "digest": digest}
    (args.folder / f"{hvd.rank()}.json").write_text(json.dumps(answer))
    print(json.dumps(answer), flush=True)
    if hvd.rank() == 0:
        np.savez(args.folder / "weights.npz", **weights)


if __name__ == "__main__":
    main()
