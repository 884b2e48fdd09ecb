"""Products as ONNX Runtime's kernels take them best, and updates folded into products."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import popdist_onnx as popart
from popdist_onnx.graph.load import load, save
from popdist_onnx.runtime.fusion import exchange_operands, write_out_transposed

RNG = np.random.default_rng(0)
SAMPLES, INPUTS, HIDDEN = 8, 6, 4


def perceptron(hidden=HIDDEN, kind=TensorProto.FLOAT):
    """Two layers whose weights are stored transposed, as torch stores and exports them."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    weights = {
        "w0": RNG.normal(size=(hidden, INPUTS)).astype(dtype),
        "w1": RNG.normal(size=(3, hidden)).astype(dtype),
    }
    nodes = [
        helper.make_node("Transpose", ["w0"], ["w0t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "w0t"], ["h"]),
        helper.make_node("Tanh", ["h"], ["r"]),
        helper.make_node("Transpose", ["w1"], ["w1t"], perm=[1, 0]),
        helper.make_node("MatMul", ["r", "w1t"], ["scores"]),
        helper.make_node("SoftmaxCrossEntropyLoss", ["scores", "labels"], ["loss"]),
    ]
    graph = helper.make_graph(
        nodes,
        "perceptron",
        [
            helper.make_tensor_value_info("x", kind, [SAMPLES, INPUTS]),
            helper.make_tensor_value_info("labels", TensorProto.INT64, [SAMPLES]),
        ],
        [helper.make_tensor_value_info("loss", kind, [])],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9), weights


def in_torch(weights, data, rate, steps):
    """The same training in double precision."""
    w0, w1 = (torch.tensor(w, dtype=torch.float64, requires_grad=True) for w in weights.values())
    x, labels = torch.tensor(data["x"], dtype=torch.float64), torch.tensor(data["labels"])
    optimizer = torch.optim.SGD([w0, w1], rate)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(torch.tanh(x @ w0.T) @ w1.T, labels).backward()
        optimizer.step()
    return {"w0": w0.detach().numpy(), "w1": w1.detach().numpy()}


def trained(proto, data, *, constant=True):
    """A session after five updates by SGD with rate 0.1."""
    session = popart.TrainingSession(
        proto.SerializeToString(),
        popart.DataFlow(1, ["loss"]),
        "loss",
        popart.SGD({"defaultLearningRate": (0.1, constant)}),
        popart.DeviceManager().createCpuDevice(),
    )
    session.prepareDevice()
    session.weightsFromHost()
    anchors = session.initAnchorArrays()
    for _ in range(5):
        session.run(popart.PyStepIO(data, anchors))
    session.weightsToHost()
    return session


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.DOUBLE])
# Weights smaller than the operands of their gradients, and larger ones.
@pytest.mark.parametrize("hidden", [HIDDEN, 64])
def test_updates_of_transposed_weights_are_those_of_torch(constant, kind, hidden):
    proto, weights = perceptron(hidden, kind)
    data = {
        "x": RNG.normal(size=(SAMPLES, INPUTS)).astype(weights["w0"].dtype),
        "labels": RNG.integers(0, 3, SAMPLES),
    }
    session = trained(proto, data, constant=constant)
    tolerance = 1e-14 if kind == TensorProto.DOUBLE else 2e-6
    for name, expected in in_torch(weights, data, 0.1, 5).items():
        np.testing.assert_allclose(
            session.fetched[name], expected, rtol=0, atol=tolerance, err_msg=name
        )
    folded = [node for node in session._reading.model.graph if len(node.inputs) == 3]
    folded = [node.outputs[0].name for node in folded if node.op_type == "Gemm"]
    small_operand = hidden > HIDDEN
    if small_operand or (constant and kind == TensorProto.FLOAT):
        assert sorted(folded) == ["UpdatedVar___w0", "UpdatedVar___w1"]


def product(trans_a, trans_b, rows, columns, *, turned):
    """A product of whole numbers, so that any order of the sums gives the same bits."""
    inner = 3
    shapes = {
        "a": [inner, rows] if trans_a else [rows, inner],
        "b": [columns, inner] if trans_b else [inner, columns],
    }
    nodes = [helper.make_node("Gemm", ["a", "b"], ["p"], transA=trans_a, transB=trans_b)]
    if turned:
        nodes.append(helper.make_node("Transpose", ["p"], ["y"], perm=[1, 0]))
    out = [columns, rows] if turned else [rows, columns]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()],
        [helper.make_tensor_value_info("y" if turned else "p", TensorProto.FLOAT, out)],
    )
    opsets = [helper.make_opsetid("", 18)]
    feeds = {n: RNG.integers(-9, 9, s).astype(np.float32) for n, s in shapes.items()}
    return helper.make_model(graph, opset_imports=opsets, ir_version=9), feeds


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_operands_are_exchanged_where_the_result_is_transposed(trans_a, trans_b):
    proto, feeds = product(trans_a, trans_b, 5, 7, turned=True)
    model = load(proto)
    exchange_operands(model, keep=())
    assert [node.op_type for node in model.graph] == ["Gemm"]
    (expected,) = ReferenceEvaluator(proto).run(None, feeds)
    (found,) = ReferenceEvaluator(save(model)).run(None, feeds)
    np.testing.assert_array_equal(found, expected)


def test_a_product_that_is_asked_for_keeps_its_form():
    model = load(product(1, 0, 5, 7, turned=True)[0])
    exchange_operands(model, keep=["p"])
    assert [node.op_type for node in model.graph] == ["Gemm", "Transpose"]


@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize(("rows", "turns"), [(1024, 0), (1056, 1)])
def test_only_large_products_get_their_operand_transposed(trans_b, rows, turns):
    proto, feeds = product(1, trans_b, rows, 1024, turned=False)
    model = load(proto)
    write_out_transposed(model)
    kinds = [node.op_type for node in model.graph]
    assert kinds.count("Transpose") == turns
    gemm = next(node for node in model.graph if node.op_type == "Gemm")
    assert gemm.attributes.get_int("transA", 0) == 1 - turns
    (expected,) = ReferenceEvaluator(proto).run(None, feeds)
    (found,) = ReferenceEvaluator(save(model)).run(None, feeds)
    np.testing.assert_array_equal(found, expected)


def test_updates_of_recurrent_weights_are_folded_in_place():
    """Their axis of directions lies between the weight and the product."""
    weights = {
        "w": RNG.normal(size=(1, 3, INPUTS)).astype(np.float32),
        "r": RNG.normal(size=(1, 3, 3)).astype(np.float32),
    }
    nodes = [
        helper.make_node("RNN", ["x", "w", "r"], ["", "last"], hidden_size=3),
        helper.make_node("Constant", [], ["first"], value_ints=[0]),
        helper.make_node("Squeeze", ["last", "first"], ["scores"]),
        helper.make_node("SoftmaxCrossEntropyLoss", ["scores", "labels"], ["loss"]),
    ]
    graph = helper.make_graph(
        nodes,
        "recurrent",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, SAMPLES, INPUTS]),
            helper.make_tensor_value_info("labels", TensorProto.INT64, [SAMPLES]),
        ],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    data = {
        "x": RNG.normal(size=(5, SAMPLES, INPUTS)).astype(np.float32),
        "labels": RNG.integers(0, 3, SAMPLES),
    }
    session = trained(proto, data)

    w, r = (
        torch.tensor(one[0], dtype=torch.float64, requires_grad=True) for one in weights.values()
    )
    optimizer = torch.optim.SGD([w, r], 0.1)
    for _ in range(5):
        h = torch.zeros(SAMPLES, 3, dtype=torch.float64)
        for now in torch.tensor(data["x"], dtype=torch.float64):
            h = torch.tanh(now @ w.T + h @ r.T)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(h, torch.tensor(data["labels"])).backward()
        optimizer.step()
    for name, expected in (("w", w), ("r", r)):
        np.testing.assert_allclose(session.fetched[name][0], expected.detach(), rtol=0, atol=2e-6)
    folded = [node for node in session._reading.model.graph if len(node.inputs) == 3]
    folded = [node.outputs[0].name for node in folded if node.op_type == "Gemm"]
    assert {"UpdatedVar___w", "UpdatedVar___r"} <= set(folded)
