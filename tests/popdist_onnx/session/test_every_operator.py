"""Each operator with a gradient, as a session trains it: a step of SGD moves its operands."""

import numpy as np
import onnx
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


NORMALISED = """
    one, _m, _v = BatchNormalization<training_mode=1, momentum=0.5>(x, s, b, m, v)
    bent = Tanh(one)
    two, next, _w = BatchNormalization<training_mode=1, momentum=0.0>(bent, s, b, mm, vv)
    sum = Add(two, zeros)
    y = Add(sum, next)
"""
"""Constants that are equal: ONNX Runtime shares them, and its kernel writes over two of them."""

GRAPHS = {
    "main": f"(float[3, C] x) => (float[3, C] y) {{{NORMALISED}}}",
    "sub-graph": f"""(float[3, C] x) => (float[3, C] z) {{
        wanted = Loop(trips, , x) <body = step(int64 i, bool on, float[3, C] h)
            => (bool on_too, float[3, C] y) {{
                on_too = Identity(on)
                {NORMALISED.replace("(x,", "(h,")}
            }}>
        z = Identity(wanted)
    }}""",
}


def standardized(x):
    return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)


@pytest.mark.parametrize("width", [4, 16])
@pytest.mark.parametrize("graph", GRAPHS)
def test_batch_normalization_leaves_equal_constants_alone(graph, width):
    text = GRAPHS[graph].replace("C]", f"{width}]")
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')
    for name, number in {"s": 1, "b": 0, "m": 0, "v": 1, "mm": 0, "vv": 1, "zeros": 0}.items():
        filled = np.full(width, number, np.float32)
        model.graph.initializer.append(numpy_helper.from_array(filled, name))
    if graph != "main":
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(2), "trips"))
    x = np.random.default_rng(0).normal(3, 1, (3, width)).astype(np.float32)
    wanted = x
    for _ in range(1 if graph == "main" else 2):
        bent = np.tanh(standardized(wanted))
        wanted = standardized(bent) + bent.mean(0)
    output = model.graph.output[0].name
    session = popart.InferenceSession(model, popart.DataFlow(1, [output]), CPU)
    session.prepareDevice()
    found = session.initAnchorArrays()
    for _ in range(2):
        session.run(popart.PyStepIO({"x": x}, found))
        np.testing.assert_allclose(found[output], wanted, atol=1e-5)
