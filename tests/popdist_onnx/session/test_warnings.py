"""What a session trains with, but not without a word."""

import io
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import popdist_onnx as popart
from tests.popdist_onnx import networks

CPU = popart.DeviceManager().createCpuDevice()
EVERY = popart.AnchorReturnType("All")


def perceptron():
    flow = popart.DataFlow(1, {"loss": EVERY})
    made = popart.TrainingSession(networks.perceptron(3), flow, "loss", popart.ConstSGD(0.1), CPU)
    made.prepareDevice()
    made.weightsFromHost()
    return made


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_data_that_are_no_numbers_are_named_once(caplog, number):
    x, target = networks.batches(1, 3)
    made = perceptron()
    made.run(popart.PyStepIO({"x": x, "target": target}, made.initAnchorArrays()))
    assert not caplog.records
    x.reshape(-1)[-1] = number
    for _ in range(2):
        made.run(popart.PyStepIO({"x": x, "target": target}, made.initAnchorArrays()))
    (record,) = caplog.records
    assert "input x holds NaN or infinite numbers" in record.getMessage()
    assert "numpy.nan_to_num" in record.getMessage()


def test_data_for_an_initialized_input_are_passed_over(caplog):
    x, target = networks.batches(1, 3)
    ones = np.ones_like(networks.weights()["w1"])
    losses = []
    for extra in ({}, {"w1": ones}):
        made = perceptron()
        anchors = made.initAnchorArrays()
        made.run(popart.PyStepIO({"x": x, "target": target, **extra}, anchors))
        losses.append(float(anchors["loss"]))
    assert losses[0] == losses[1]
    assert "input w1 has its content from the model" in caplog.text


def exported(*, training):
    file = io.BytesIO()
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))
    mode = torch.onnx.TrainingMode.EVAL if training is None else torch.onnx.TrainingMode.PRESERVE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.train(bool(training)),
            (torch.zeros(2, 3, 4, 4),),
            file,
            input_names=["x"],
            output_names=["y"],
            training=mode,
            do_constant_folding=training is None,
            dynamo=False,
        )
    return file.getvalue()


@pytest.mark.parametrize(
    ("training", "said"),
    [
        (None, "folds batch normalisation into them"),
        (False, "BatchNormalization nodes are in inference mode"),
        (True, None),
    ],
    ids=["folded", "fixed", "training"],
)
def test_batch_normalisation_that_was_exported_for_inference(caplog, training, said):
    builder = popart.Builder(exported(training=training))
    loss = builder.aiGraphcore.identityloss(["y"])
    flow = popart.DataFlow(1, {loss: EVERY})
    popart.TrainingSession(builder.getModelProto(), flow, loss, popart.ConstSGD(0.1), CPU)
    assert said in caplog.text if said else not caplog.text
