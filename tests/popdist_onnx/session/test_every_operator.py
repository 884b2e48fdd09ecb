"""Each operator with a gradient, as a session trains it: a step of SGD moves its operands."""

import numpy as np
import pytest
from onnx import numpy_helper

import popdist_onnx as popart
from tests.popdist_onnx.gradients.harness import (
    model_of,
    read_outputs,
    results_of,
    weights_of,
)
from tests.popdist_onnx.gradients.test_rules import CASES
from tests.popdist_onnx.lowering.test_differentiable import SAMPLES

CPU = popart.DeviceManager().createCpuDevice()
RATE = 0.125


def trained(model, loss):
    """The weights of a model of weights only, after one step."""
    session = popart.TrainingSession(
        model,
        popart.DataFlow(1, [loss]),
        loss,
        popart.SGD({"defaultLearningRate": (RATE, False)}),
        CPU,
    )
    session.prepareDevice()
    session.weightsFromHost()
    session.run(popart.PyStepIO({}, session.initAnchorArrays()))
    session.weightsToHost()
    return session.fetched


FIRST = {case.op_type: case for case in reversed(CASES) if case.op_type != "OneHot"}


@pytest.mark.parametrize("case", FIRST.values(), ids=FIRST)
def test_ai_onnx(case):
    proto, feeds = model_of(case)
    for name, array in feeds.items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    found = trained(proto.SerializeToString(), "loss")
    tensors, made = results_of(case)
    parts = [
        (made[index] * made[index].new_tensor(weights_of(case, index))).sum()
        for index in read_outputs(case)
    ]
    sum(parts).backward()
    names = feeds if case.wanted is None else [f"in{index}" for index in case.wanted]
    for name in names:
        gradient = tensors[int(name[2:])].grad
        expected = feeds[name] - RATE * (0 if gradient is None else gradient.numpy())
        scale = max(1.0, float(np.abs(expected).max(initial=0)))
        # Single exponents are settings of the model: no session trains them.
        if (case.op_type, name) != ("Pow", "in1"):
            np.testing.assert_allclose(found[name] / scale, expected / scale, atol=2e-4)


@pytest.mark.parametrize("method", SAMPLES)
def test_ai_graphcore(method):
    arrays, arguments = SAMPLES[method]
    builder = popart.Builder(opsets={"ai.onnx": 13, "ai.graphcore": 1})
    ids = [
        builder.addInitializedInputTensor(array)
        if array.dtype.kind == "f"
        else builder.aiOnnx.constant(array)
        for array in arrays
    ]
    result = getattr(builder.aiGraphcore, method)(ids, **arguments)
    first = result if isinstance(result, str) else result[0]
    loss = builder.aiGraphcore.identityloss([builder.aiOnnx.sin([first])])
    found = trained(builder.getModelProto(), loss)
    assert set(found) == {i for i, a in zip(ids, arrays, strict=True) if a.dtype.kind == "f"}
    assert any(
        not np.array_equal(found[i], a) for i, a in zip(ids, arrays, strict=True) if i in found
    )
    assert all(np.isfinite(one).all() for one in found.values())
