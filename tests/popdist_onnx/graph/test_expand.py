"""Operators that ONNX defines as functions: what is trained is what ONNX Runtime computes."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import popdist_onnx as popart
from popdist_onnx.graph.load import load
from popdist_onnx.transforms.autodiff import autodiff
from popdist_onnx.transforms.loss import set_loss
from tests.popdist_onnx.gradients.harness import session

CPU = popart.DeviceManager().createCpuDevice()
NEWEST = onnx.defs.onnx_opset_version()
STEP = 1e-2

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


POSITIONS = np.arange(8).reshape(2, 4) % 10

CASES = {
    "Attention": (23, [normal(2, 3, 4, 8), normal(2, 3, 5, 8), normal(2, 3, 5, 8)], {}),
    "Attention causal": (
        23,
        [normal(2, 3, 4, 8), normal(2, 3, 5, 8), normal(2, 3, 5, 8)],
        {"is_causal": 1},
    ),
    "Attention masked": (
        23,
        [normal(2, 3, 4, 8), normal(2, 3, 5, 8), normal(2, 3, 5, 8), normal(4, 5)],
        {},
    ),
    "Attention grouped": (23, [normal(2, 8, 4, 4), normal(2, 2, 5, 4), normal(2, 2, 5, 4)], {}),
    "RotaryEmbedding": (23, [normal(2, 3, 4, 8), normal(10, 4), normal(10, 4), POSITIONS], {}),
    "RMSNormalization": (23, [normal(2, 3, 8), normal(8)], {}),
    "Swish": (24, [normal(3, 4)], {"alpha": 0.7}),
    "CenterCropPad": (18, [normal(5, 6), np.array([3, 8])], {}),
    "Mish": (18, [normal(3, 4)], {}),
}


def model_of(op_type, opset, inputs, attributes):
    names = [f"in{index}" for index in range(len(inputs))]
    nodes = [
        helper.make_node(op_type, names, ["made"], name="subject", **attributes),
        helper.make_node("Sin", ["made"], ["curved"]),
        helper.make_node("ReduceSum", ["curved"], ["loss"], keepdims=0),
    ]
    weights = [numpy_helper.from_array(a, n) for n, a in zip(names, inputs, strict=True)]
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "g", [], [loss], weights)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def gradients(model):
    session = popart.TrainingSession(
        model,
        popart.DataFlow(1, ["loss"]),
        "loss",
        popart.SGD({"defaultLearningRate": (1.0, False)}),
        CPU,
    )
    session.prepareDevice()
    session.weightsFromHost()
    before = {name: array.copy() for name, array in session.host_tensors.items()}
    session.run(popart.PyStepIO({}, session.initAnchorArrays()))
    session.weightsToHost()
    return {name: before[name] - session.fetched[name] for name in before}


def loss_of(model):
    """The loss of the operator as ONNX Runtime knows it, as a function of the operands."""
    options = popart.SessionOptions()
    options.constantWeights = False
    session = popart.InferenceSession(model, popart.DataFlow(1, ["loss"]), CPU, userOptions=options)
    session.prepareDevice()
    anchors = session.initAnchorArrays()

    def evaluate(operands):
        session.writeWeights(popart.PyWeightsIO(operands))
        session.weightsFromHost()
        session.run(popart.PyStepIO({}, anchors))
        return float(anchors["loss"])

    return evaluate


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_the_slope_of_what_runs(name):
    opset, inputs, attributes = CASES[name]
    op_type = name.split()[0]
    if opset > NEWEST:
        with pytest.raises(onnx.defs.SchemaError):  # this onnx does not know it yet
            onnx.defs.get_schema(op_type, NEWEST, "")
        return
    model = model_of(op_type, opset, inputs, attributes)
    found = gradients(model)
    evaluate = loss_of(model)
    operands = {f"in{index}": array for index, array in enumerate(inputs)}
    for key, gradient in found.items():
        direction = RNG.standard_normal(gradient.shape).astype(np.float32)
        direction /= np.linalg.norm(direction)
        ends = [
            evaluate(operands | {key: operands[key] + sign * STEP * direction}) for sign in (1, -1)
        ]
        slope = (ends[0] - ends[1]) / (2 * STEP)
        assert slope == pytest.approx(float((gradient * direction).sum()), abs=1e-2, rel=1e-2)


def test_the_newest_opset_that_onnx_knows_runs():
    """Though ONNX Runtime knows it later: a graph says the oldest opset that means the same."""
    model = model_of("Gelu", NEWEST, [normal(3, 4)], {"approximate": "tanh"})
    assert np.abs(gradients(model)["in0"]).max() > 0


@pytest.mark.parametrize(
    ("split", "attributes", "places"),
    [
        (np.int64(2), {"axis": 1}, [0, 1, 2]),
        (np.array([1, 3, 1]), {"axis": 1}, [2, 0, 0]),
        (np.array([1, 3, 1]), {"axis": -1}, [-1, -2]),
        (None, {"axis": 1, "keepdims": 0}, [4, 1]),
        (None, {"axis": 0}, [1]),
    ],
    ids=["even parts and a rest", "one part twice", "from the end", "rows without axis", "rows"],
)
def test_sequences_of_parts_are_split(split, attributes, places):
    given = {} if split is None else {"split": np.asarray(split)}
    nodes = [helper.make_node("SplitToSequence", ["x", *given], ["parts"], **attributes)]
    stored = [numpy_helper.from_array(array, name) for name, array in given.items()]
    for number, place in enumerate(places):
        stored.append(numpy_helper.from_array(np.asarray(place), f"place{number}"))
        nodes.append(helper.make_node("SequenceAt", ["parts", f"place{number}"], [f"y{number}"]))
    outputs = [f"y{number}" for number in range(len(places))]
    graph = helper.make_graph(
        nodes,
        "parts",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 5])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        stored,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    x = normal(2, 5)
    expected = ReferenceEvaluator(model).run(None, {"x": x})
    session = popart.InferenceSession(model, popart.DataFlow(1, outputs), CPU)
    session.prepareDevice()
    session.weightsFromHost()
    found = session.initAnchorArrays()
    session.run(popart.PyStepIO({"x": x}, found))
    for name, wanted in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(found[name].reshape(wanted.shape), wanted)


def sliced(pieces, length=6, axis=0):
    """A weight that is taken apart and joined in another order, as torch exports an LSTM's."""
    weight = normal(*((length, 4) if axis == 0 else (4, length)))
    nodes = []
    for number, (start, end) in enumerate(pieces):
        limits = [numpy_helper.from_array(np.array([one])) for one in (start, end, axis)]
        names = [f"{name}_{number}" for name in ("start", "end", "axis")]
        nodes += [
            helper.make_node("Constant", [], [name], value=limit)
            for name, limit in zip(names, limits, strict=True)
        ]
        nodes.append(helper.make_node("Slice", ["w", *names], [f"piece_{number}"]))
    parts = [f"piece_{number}" for number in range(len(pieces))]
    nodes += [
        helper.make_node("Concat", parts, ["joined"], axis=axis),
        helper.make_node("Mul", ["joined", "x"], ["scaled"]),
        helper.make_node("Sin", ["scaled"], ["curved"]),
        helper.make_node("ReduceSum", ["curved"], ["loss"], keepdims=0),
    ]
    taken = np.concatenate(
        [weight.take(range(*slice(*piece).indices(length)), axis) for piece in pieces], axis
    )
    x = normal(*taken.shape)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(weight, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), weight, x


@pytest.mark.parametrize(
    ("pieces", "axis", "divided"),
    [
        ([(0, 1), (4, 6), (1, 4)], 0, True),
        ([(0, 2), (-2, 2**31), (2, -2)], 1, True),
        ([(0, 2), (4, 6)], 0, False),  # a gap
        ([(0, 3), (2, 6)], 0, False),  # twice
        ([(0, 6)], 0, False),  # the whole
    ],
)
def test_slices_that_take_a_weight_apart_become_a_split(pieces, axis, divided):
    proto, weight, x = sliced(pieces, axis=axis)
    model = autodiff(set_loss(load(proto), "loss"), outputs=["w"])
    kinds = {node.op_type for node in model.graph}
    assert ("Slice" in kinds) == ("Pad" in kinds) == (not divided)
    _, found = session(model).run(None, {"x": x})
    w = torch.tensor(weight.astype(np.float64), requires_grad=True)
    taken = [w[piece] if axis == 0 else w[:, piece] for piece in (slice(*one) for one in pieces)]
    (torch.cat(taken, axis) * torch.tensor(x)).sin().sum().backward()
    np.testing.assert_allclose(found, w.grad.numpy(), rtol=1e-5, atol=1e-5)
