"""A logistic regression in the manner of the published programs, run by test_onnx_launchers.

Every process writes what it saw to ``FOLDER/<rank>.npz``. Arguments: FOLDER, and how the processes'
data are to be: ``same`` or ``own``.
"""

import sys
from pathlib import Path

import numpy as np

import popdist_onnx as popart
import popdist_onnx.horovod as hvd

BATCHES, FEATURES, CLASSES = 32, 784, 10


def logistic_regression():
    """The model with unnormalised scores in the place of probabilities, as it was published."""
    builder = popart.Builder()
    image = builder.addInputTensor(popart.TensorInfo(np.float32, [1, FEATURES]))
    weight = builder.addInitializedInputTensor(
        np.random.normal(0, 1, [FEATURES, CLASSES]).astype(np.float32)  # noqa: NPY002 - as published
    )
    bias = builder.addInitializedInputTensor(
        np.random.normal(0, 1, [CLASSES]).astype(np.float32)  # noqa: NPY002
    )
    scores = builder.aiOnnx.add([builder.aiOnnx.matmul([image, weight]), bias])
    builder.aiOnnx.softmax([scores])
    label = builder.addInputTensor(popart.TensorInfo("INT32", [1]))
    loss = builder.aiGraphcore.nllloss([scores, label])
    return builder.getModelProto(), (image, label), scores, loss, (weight, bias)


def main(folder, data_are):
    np.random.seed(42)  # noqa: NPY002 - the published losses belong to this generator
    proto, (image, label), scores, loss, weights = logistic_regression()
    options = popart.SessionOptions()
    options.hostAllReduce = True
    optimizer = popart.SGD({"defaultLearningRate": (0.1, False)})
    device = popart.DeviceManager().createIpuModelDevice(
        {"compileIPUCode": True, "numIPUs": 1, "tilesPerIPU": 1216}
    )
    every = popart.AnchorReturnType("All")
    session = popart.TrainingSession(
        fnModel=proto,
        dataFlow=popart.DataFlow(BATCHES, {scores: every, loss: every}),
        loss=loss,
        optimizer=optimizer,
        deviceInfo=device,
        userOptions=options,
    )
    session.prepareDevice()
    session.setRandomSeed(0)
    anchors = session.initAnchorArrays()

    hvd.init()
    hvd.DistributedOptimizer(optimizer, session, options).insert_host_allreduce()
    hvd.broadcast_weights(session, root_rank=0)
    session.weightsFromHost()

    images = np.random.normal(size=(BATCHES, 1, FEATURES)).astype(np.float32)  # noqa: NPY002
    labels = np.zeros((BATCHES, 1, 1), np.int32)
    if data_are == "own":
        images, labels = images + hvd.rank(), labels + hvd.rank()
    losses = []
    for _ in range(4):
        session.run(popart.PyStepIO({image: images, label: labels}, anchors))
        losses.append(anchors[loss].copy())
    session.weightsToHost()
    found = {name: np.empty_like(session.host_tensors[name]) for name in weights}
    session.readWeights(popart.PyWeightsIO(found))
    np.savez(
        Path(folder) / f"{hvd.rank()}.npz",
        losses=losses,
        size=hvd.size(),
        weight=found[weights[0]],
        bias=found[weights[1]],
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
