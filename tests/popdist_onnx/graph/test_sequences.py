"""Sequences and optional values in a network: forward as ONNX Runtime, gradients as torch."""

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from popdist_onnx.graph.load import load
from popdist_onnx.transforms.autodiff import autodiff
from popdist_onnx.transforms.loss import add_sum
from tests.popdist_onnx.gradients.harness import session

RANDOM = np.random.default_rng(4)
X = RANDOM.standard_normal((3, 4)).astype(np.float32)
ONE = helper.make_tensor("one", TensorProto.INT64, [], [1])


def node(op_type, inputs, outputs, **attributes):
    return helper.make_node(op_type, inputs.split(), outputs.split(), **attributes)


def squared(name, made):
    return node("Mul", f"{name} {name}", made)


def sequence(name):
    return helper.make_tensor_sequence_value_info(name, TensorProto.FLOAT, None)


def loop():
    """Three turns of ``states.append(states[-1] * x)``, as torch's scripts write a list."""
    body = helper.make_graph(
        [
            node("SequenceAt", "before last", "state"),
            node("Mul", "state x", "next"),
            node("SequenceInsert", "before next", "after"),
            node("Identity", "goes", "on"),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("goes", TensorProto.BOOL, []),
            sequence("before"),
        ],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []), sequence("after")],
        [helper.make_tensor("last", TensorProto.INT64, [], [-1])],
    )
    return [
        node("SequenceConstruct", "x", "start"),
        node("Constant", "", "turns", value=numpy_helper.from_array(np.array(3))),
        helper.make_node("Loop", ["turns", "", "start"], ["states"], body=body),
        node("ConcatFromSequence", "states", "y", axis=0, new_axis=1),
    ]


def mapped():
    body = helper.make_graph(
        [node("Mul", "part whole", "product")],
        "body",
        [
            helper.make_tensor_value_info("part", TensorProto.FLOAT, [1, 4]),
            helper.make_tensor_value_info("whole", TensorProto.FLOAT, [3, 4]),
        ],
        [helper.make_tensor_value_info("product", TensorProto.FLOAT, [3, 4])],
    )
    return [
        node("SplitToSequence", "x", "parts"),
        helper.make_node("SequenceMap", ["parts", "x"], ["products"], body=body),
        node("ConcatFromSequence", "products", "y", axis=0),
    ]


def branches():
    """An optional value that is asked whether it is there, as optional arguments are exported."""
    then = helper.make_graph(
        [node("OptionalGetElement", "given", "content"), squared("content", "made")],
        "then",
        [],
        [helper.make_tensor_value_info("made", TensorProto.FLOAT, [3, 4])],
    )
    other = helper.make_graph(
        [node("Neg", "x", "negative")],
        "other",
        [],
        [helper.make_tensor_value_info("negative", TensorProto.FLOAT, [3, 4])],
    )
    return [
        node("Optional", "x", "given"),
        node("OptionalHasElement", "given", "there"),
        helper.make_node("If", ["there"], ["y"], then_branch=then, else_branch=other),
    ]


# Nodes from x to y, and the same in torch.
NETWORKS = {
    "construct and stack": (
        [
            squared("x", "a"),
            node("SequenceConstruct", "x a", "s"),
            node("ConcatFromSequence", "s", "y", axis=1, new_axis=1),
        ],
        lambda x: torch.stack([x, x * x], 1),
    ),
    "insert, erase and take": (
        [
            squared("x", "a"),
            node("SequenceEmpty", "", "s0"),
            node("SequenceInsert", "s0 x", "s1"),
            node("SequenceInsert", "s1 a", "s2"),
            node("SequenceErase", "s2 zero", "s3"),
            node("SequenceAt", "s3 zero", "y"),
        ],
        lambda x: x * x,
    ),
    "split and concatenate": (
        [
            node("SplitToSequence", "x one", "s", axis=1),
            node("SequenceAt", "s one", "second"),
            node("SequenceInsert", "s second zero", "more"),
            node("ConcatFromSequence", "more", "joined", axis=1),
            squared("joined", "y"),
        ],
        lambda x: torch.cat([x[:, 1:2], x], 1) ** 2,
    ),
    "length": (
        [
            node("SplitToSequence", "x", "s"),
            node("SequenceLength", "s", "count"),
            node("Cast", "count", "number", to=TensorProto.FLOAT),
            node("Mul", "x number", "y"),
        ],
        lambda x: x * 3,
    ),
    "place that a run tells": (
        [
            node("SplitToSequence", "x", "s", keepdims=0),
            node("ArgMax", "x", "best", axis=0, keepdims=0),
            node("Gather", "best zero", "first"),
            node("SequenceAt", "s first", "part"),
            squared("part", "y"),
        ],
        lambda x: x[x.argmax(0)[0]] ** 2,
    ),
    "loop": (loop(), lambda x: torch.stack([x, x**2, x**3, x**4])),
    "map": (mapped(), lambda x: torch.cat([x[i : i + 1] * x for i in range(3)])),
    "optional": (branches(), lambda x: x * x),
}


def model_of(nodes, opset=18):
    zero = helper.make_tensor("zero", TensorProto.INT64, [], [0])
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [zero, ONE],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_pass_through_sequences(name):
    nodes, reference = NETWORKS[name]
    proto = model_of(nodes)
    (wanted,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": X})
    model = autodiff(add_sum(load(proto), "y", "sum"), outputs=["x"])
    assert not any("Sequence" in one.op_type for one in model.graph.all_nodes())
    made = session(model).run(["y", "Gradient___x"], {"x": X})
    np.testing.assert_allclose(made[0], wanted, rtol=1e-6)
    x = torch.tensor(X, dtype=torch.float64, requires_grad=True)
    reference(x).sum().backward()
    np.testing.assert_allclose(made[1], x.grad.numpy(), rtol=1e-5)


def test_sequences_of_older_files_pass_gradients():
    nodes, _ = NETWORKS["construct and stack"]
    model = autodiff(add_sum(load(model_of(nodes, 11)), "y", "sum"), outputs=["x"])
    (found,) = session(model).run(["Gradient___x"], {"x": X})
    np.testing.assert_allclose(found, 1 + 2 * X, rtol=1e-5)


def test_a_sequence_that_the_graph_returns_stays():
    proto = model_of([*NETWORKS["construct and stack"][0]])
    proto.graph.output.append(sequence("s"))
    made = session(load(proto)).run(["s"], {"x": X})[0]
    np.testing.assert_allclose(made, [X, X * X], rtol=1e-6)
