"""Sessions of PopART, one for each of some losses of the table, which torch has exported."""

import numpy as np
import torch

import popdist.popart
import popdist_onnx as popart
from popdist_onnx import horovod as hvd
from tests.properties.programs import plain_loop
from tests.properties.test_onnx_models import Whole
from tests.properties.torch_losses import LOSSES, SOME, WIDTH


def train(name):
    torch.manual_seed(1)
    rank, size = popdist.getInstanceIndex(), popdist.getNumInstances()
    own = [(x.float(), y) for x, y in plain_loop.batches(rank, size)]
    model = popart.from_torch(Whole(LOSSES[name][1]), own[0], input_names=["x", "y"])
    rows, shapes = plain_loop.ROWS // size, popart.InputShapeInfo()
    shapes.add("x", popart.TensorInfo("FLOAT", [rows, WIDTH]))
    shapes.add("y", popart.TensorInfo("INT64", [rows]))
    options, optimizer = (
        popart.SessionOptions(),
        popart.SGD({"defaultLearningRate": (plain_loop.RATE, True)}),
    )
    options.hostAllReduce = size > 1
    options.accumulationAndReplicationReductionType = popart.ReductionType.Mean
    popdist.popart.configureSessionOptions(options)
    session = popart.TrainingSession(
        fnModel=model.SerializeToString(),
        dataFlow=popart.DataFlow(1, ["output"]),
        loss="output",
        optimizer=optimizer,
        inputShapeInfo=shapes,
        deviceInfo=popart.DeviceManager().createCpuDevice(),
        userOptions=options,
    )
    session.prepareDevice()
    if size > 1:
        hvd.DistributedOptimizer(optimizer, session, options).insert_host_allreduce()
    session.weightsFromHost()
    anchors = session.initAnchorArrays()
    used = {value.name for value in model.graph.input}
    for x, y in own:
        given = {"x": np.array(x), "y": np.array(y)}
        own_inputs = {name: given[name] for name in used}
        session.run(popart.PyStepIO(own_inputs, anchors))


def main():
    hvd.init()
    for name in SOME:
        train(name)


if __name__ == "__main__":
    main()
