"""Logistic regression with PopART and its Horovod extension, with the calls that its guide teaches.

Random numbers are drawn unseeded, in the order weights, biases, data.
"""

from typing import NamedTuple

import horovod.popart as hvd
import numpy as np
import popart

SAMPLES, PIXELS, CLASSES = 1, 784, 10
BATCHES_PER_STEP, STEPS = 32, 10


class Net(NamedTuple):
    proto: bytes
    images: str
    labels: str
    scores: str
    loss: str


class Training(NamedTuple):
    session: object
    anchors: dict


def normal(*shape):
    return np.random.normal(0, 1, shape).astype(np.float32)


def build():
    builder = popart.Builder()
    images = builder.addInputTensor(popart.TensorInfo(np.float32, [SAMPLES, PIXELS]))
    weights = builder.addInitializedInputTensor(normal(PIXELS, CLASSES))
    biases = builder.addInitializedInputTensor(normal(CLASSES))
    scores = builder.aiOnnx.add([builder.aiOnnx.matmul([images, weights]), biases])
    builder.aiOnnx.softmax([scores])  # the loss takes the scores, so nothing needs it
    labels = builder.addInputTensor(popart.TensorInfo("INT32", [SAMPLES]))
    loss = builder.aiGraphcore.nllloss([scores, labels])
    return Net(builder.getModelProto(), images, labels, scores, loss)


def model_of_an_ipu():
    found = popart.DeviceManager().createIpuModelDevice(
        {"compileIPUCode": True, "numIPUs": 1, "tilesPerIPU": 1216}
    )
    if found is None:
        raise OSError("there is no model of an IPU")
    return found


def prepare(net, optimizer, options):
    every = popart.AnchorReturnType("All")
    session = popart.TrainingSession(
        fnModel=net.proto,
        dataFlow=popart.DataFlow(BATCHES_PER_STEP, {net.scores: every, net.loss: every}),
        loss=net.loss,
        optimizer=optimizer,
        userOptions=options,
        deviceInfo=model_of_an_ipu(),
    )
    session.prepareDevice()
    session.setRandomSeed(7)
    return Training(session, session.initAnchorArrays())


def main():
    net = build()
    optimizer = popart.SGD({"defaultLearningRate": (0.1, False)})
    options = popart.SessionOptions()
    options.hostAllReduce = True
    training = prepare(net, optimizer, options)

    hvd.init()
    distributed = hvd.DistributedOptimizer(optimizer, training.session, options)
    distributed.insert_host_allreduce()
    hvd.broadcast_weights(training.session, root_rank=0)
    training.session.weightsFromHost()

    images = normal(BATCHES_PER_STEP, SAMPLES, PIXELS)
    labels = np.zeros([BATCHES_PER_STEP, SAMPLES, 1], np.int32)
    for _ in range(STEPS):
        io = popart.PyStepIO({net.images: images, net.labels: labels}, training.anchors)
        training.session.run(io)


main()
