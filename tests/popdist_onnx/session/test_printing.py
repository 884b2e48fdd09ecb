"""Printed tensors: values and gradients of every micro-batch, on standard error."""

import re

import numpy as np
import pytest
import torch

import popdist_onnx as popart

CPU = popart.DeviceManager().createCpuDevice()
WEIGHT = np.array([[1, 2], [3, 4]], np.float32)


def printed(capfd):
    """Titles and numbers of what was printed."""
    found = re.findall(r"^(\S+): ([{}\d.,e+-]+)$", capfd.readouterr().err, re.MULTILINE)
    return [(title, np.array(eval(text.translate(BRACKETS)))) for title, text in found]  # noqa: S307


BRACKETS = str.maketrans("{}", "[]")


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("anchored", [False, True])
def test_values_and_gradients_of_each_micro_batch(accumulation, anchored, capfd):
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [2, 2], "x")
    w = builder.addInitializedInputTensor(WEIGHT, "w")
    seen = builder.aiGraphcore.printtensor([w])
    y = builder.aiOnnx.matmul([x, seen])
    hidden = builder.aiGraphcore.printtensor([y], print_gradient=0, title="product")
    loss = builder.aiGraphcore.identityloss([builder.aiOnnx.mul([hidden, hidden])])
    options = popart.SessionOptions()
    options.enableGradientAccumulation = accumulation > 1
    options.accumulationFactor = accumulation
    every = popart.AnchorReturnType("All")
    made = popart.TrainingSession(
        builder.getModelProto(),
        popart.DataFlow(1, {loss: every, **({hidden: every} if anchored else {})}),
        loss,
        popart.ConstSGD(0.1),
        CPU,
        userOptions=options,
    )
    made.prepareDevice()
    made.weightsFromHost()
    anchors = made.initAnchorArrays()
    rows = np.arange(4 * accumulation, dtype=np.float32).reshape(accumulation, 2, 2)
    capfd.readouterr()
    made.run(popart.PyStepIO({x: rows if accumulation > 1 else rows[0]}, anchors))
    expected = []
    for part in rows:
        weight = torch.tensor(WEIGHT, requires_grad=True)
        product = torch.tensor(part) @ weight
        (product * product).mean().backward()
        expected += [("w", WEIGHT), ("product", product.detach()), ("Gradient___w", weight.grad)]
    found = printed(capfd)
    assert [title for title, _ in found] == [title for title, _ in expected]
    for (_, array), (_, wanted) in zip(found, expected, strict=True):
        np.testing.assert_allclose(array, np.asarray(wanted), rtol=1e-5)
    if anchored:
        products = [array for title, array in found if title == "product"]
        np.testing.assert_array_equal(anchors[hidden].reshape(-1, 2, 2), products)


def test_inference_prints_whole_numbers(capfd):
    builder = popart.Builder()
    x = builder.addInputTensor("INT32", [3])
    y = builder.aiGraphcore.printtensor([builder.aiOnnx.add([x, x])])
    builder.addOutputTensor(y)
    made = popart.InferenceSession(builder.getModelProto(), popart.DataFlow(1, [y]), CPU)
    made.prepareDevice()
    made.run(popart.PyStepIO({x: np.arange(3, dtype=np.int32)}, made.initAnchorArrays()))
    assert "Add:0: {0,2,4}\n" in capfd.readouterr().err
