"""Gelus that were written as several nodes train as torch's do."""

import math

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from popdist_onnx.graph.load import load, save
from popdist_onnx.lowering.apply import lower
from popdist_onnx.transforms.autodiff import autodiff
from popdist_onnx.transforms.loss import set_loss
from popdist_onnx.transforms.recognition import recognise_gelu
from tests.popdist_onnx.gradients.harness import session

X = np.random.default_rng(0).normal(size=(4, 33)).astype(np.float32) * 3
C = math.sqrt(2 / math.pi)

# Each as (operator, operands, result); numbers are constants.
BY_TORCH = [
    ("Div", "x", math.sqrt(2), "a"),
    ("Erf", "a", "e"),
    ("Add", "e", 1.0, "p"),
    ("Mul", "x", "p", "m"),
    ("Mul", "m", 0.5, "y"),
]
HALF_FIRST = [
    ("Mul", "x", math.sqrt(0.5), "a"),
    ("Erf", "a", "e"),
    ("Add", 1.0, "e", "p"),
    ("Mul", 0.5, "x", "h"),
    ("Mul", "h", "p", "y"),
]
BY_CUBE = [
    ("Pow", "x", 3.0, "q"),
    ("Mul", "q", 0.044715, "k"),
    ("Add", "x", "k", "i"),
    ("Mul", "i", C, "u"),
    ("Tanh", "u", "t"),
    ("Add", "t", 1.0, "p"),
    ("Mul", "x", 0.5, "h"),
    ("Mul", "h", "p", "y"),
]
BY_PRODUCTS = [
    ("Mul", "x", "x", "s"),
    ("Mul", "s", "x", "q"),
    ("Mul", "q", 0.044715, "k"),
    ("Add", "x", "k", "i"),
    ("Mul", C, "i", "u"),
    ("Tanh", "u", "t"),
    ("Add", 1.0, "t", "p"),
    ("Mul", "x", "p", "m"),
    ("Mul", 0.5, "m", "y"),
]
QUICK = [("Mul", "x", 0.8, "u"), ("Tanh", "u", "t"), ("Add", "t", 1.0, "p"), ("Mul", "x", "p", "y")]


def model(written, outputs=("loss",)):
    numbers, nodes = {}, []
    for op_type, *operands, to in written:
        names = []
        for one in operands:
            name = f"number_{len(numbers)}" if isinstance(one, float) else one
            if isinstance(one, float):
                numbers[name] = np.float32(one)
            names.append(name)
        nodes.append(helper.make_node(op_type, names, [to]))
    constants = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(number)))
        for name, number in numbers.items()
    ]
    nodes += [
        helper.make_node("Mul", ["y", "y"], ["square"]),
        helper.make_node("ReduceSum", ["square"], ["loss"], keepdims=0),
    ]
    graph = helper.make_graph(
        [*constants, *nodes],
        "gelu",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
    )
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def kinds(graph):
    return [node.op_type for node in graph if node.op_type != "Constant"]


@pytest.mark.parametrize(
    ("written", "approximate"),
    [(BY_TORCH, "none"), (HALF_FIRST, "none"), (BY_CUBE, "tanh"), (BY_PRODUCTS, "tanh")],
    ids=["torch", "half first", "cube", "products"],
)
def test_a_written_out_gelu_becomes_one_node_and_trains_as_in_torch(written, approximate):
    recognised = recognise_gelu(model(written))
    assert kinds(recognised.graph) == ["Gelu", "Mul", "ReduceSum"]
    found = autodiff(set_loss(recognised, "loss"), outputs=["x"])
    assert "Gelu" not in kinds(found.graph)
    loss, gradient = session(lower(found)).run(None, {"x": X})
    x = torch.tensor(X.astype(np.float64), requires_grad=True)
    expected = torch.nn.functional.gelu(x, approximate=approximate).square().sum()
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-6)
    np.testing.assert_allclose(gradient, x.grad.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("written", [BY_TORCH, BY_CUBE], ids=["none", "tanh"])
def test_what_is_not_differentiated_runs_as_it_was_written(written):
    (expected,) = session(model(written)).run(None, {"x": X})
    recognised = lower(recognise_gelu(model(written)))
    (found,) = session(recognised).run(None, {"x": X})
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("written", "outputs", "keep"),
    [
        (QUICK, ["loss"], ()),  # another function
        (BY_TORCH[:3], ["p"], ()),  # no product with x
        ([*BY_TORCH[:3], ("Mul", "p", 0.5, "y")], ["loss"], ()),
        (BY_TORCH, ["loss", "p"], ()),  # an output of the model
        (BY_CUBE, ["loss"], ["t"]),  # an anchor
        ([*BY_TORCH[:4], ("Mul", "m", 0.25, "y")], ["loss"], ()),
    ],
    ids=["tanh", "no end", "no product", "output", "anchor", "quarter"],
)
def test_what_is_no_gelu_or_is_read_in_parts_stays(written, outputs, keep):
    if outputs == ["p"]:
        written = [*written, ("Neg", "p", "y")]
    found = model(written, outputs)
    before = kinds(found.graph)
    recognise_gelu(found, keep)
    assert kinds(found.graph) == before
    save(found)
