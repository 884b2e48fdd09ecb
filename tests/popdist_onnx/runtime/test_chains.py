"""Chains of operators run block by block, with the same results bit by bit."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from popdist_onnx.graph.load import load, save
from popdist_onnx.runtime.chains import block_chains

SHAPE = [16, 64, 512]
RNG = np.random.default_rng(0)


def node(op_type, *inputs, to, **attributes):
    return helper.make_node(op_type, list(inputs), [to], **attributes)


def model(nodes, outputs, inputs=("x", "g"), shape=SHAPE):
    def info(name):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    numbers = {"half": 0.5, "minus": -0.5, "scale": 0.7}
    graph = helper.make_graph(
        nodes,
        "chain",
        [info(name) for name in inputs],
        [info(name) for name in outputs],
        [helper.make_tensor(name, TensorProto.FLOAT, [], [n]) for name, n in numbers.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


GELU = [
    node("Mul", "x", "scale", to="a"),
    node("Erf", "a", to="e"),
    node("Mul", "x", "x", to="q"),
    node("Mul", "q", "minus", to="n"),
    node("Exp", "n", to="d"),
    node("Mul", "x", "d", to="xd"),
    node("Greater", "x", "half", to="above"),
    node("Where", "above", "e", "xd", to="s"),
    node("Mul", "g", "s", to="y"),
]


def run(proto, feeds):
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def blocked(proto, keep=(), threads=1):
    loaded = load(proto)
    block_chains(loaded, keep, threads)
    made = save(loaded)
    onnx.checker.check_model(made)
    return made


def kinds(proto):
    return [one.op_type for one in proto.graph.node if one.op_type != "Constant"]


def feeds(shape=SHAPE):
    return {name: RNG.normal(size=shape).astype(np.float32) for name in ("x", "g")}


@pytest.mark.parametrize("threads", [1, 2])
def test_a_chain_becomes_a_loop_with_the_same_bits(threads):
    given = feeds()
    made = blocked(model(GELU, ["y"]), threads=threads)
    assert kinds(made) == ["Reshape", "Reshape", "Scan", "Reshape"]
    (expected,), (found,) = run(model(GELU, ["y"]), given), run(made, given)
    np.testing.assert_array_equal(found, expected)


def test_what_others_read_later_is_a_second_result():
    given = feeds()
    nodes = [*GELU, node("ReduceMax", "s", to="top", keepdims=0), node("Add", "y", "top", to="z")]
    plain = model(nodes, ["z"])
    made = blocked(plain)
    # The largest of all needs the whole slope, which the loop gives as well.
    assert kinds(made) == ["Reshape", "Reshape", "Scan", "Reshape", "Reshape", "ReduceMax", "Add"]
    (expected,), (found,) = run(plain, given), run(made, given)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kept", [["s"], ["n"]])
def test_a_tensor_that_is_asked_for_stays(kept):
    made = blocked(model(GELU, ["y"]), keep=kept)
    assert kept[0] in {name for one in made.graph.node for name in one.output}
    given = feeds()
    (expected,), (found,) = run(model(GELU, ["y"]), given), run(made, given)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("nodes", "shape"),
    [
        (GELU, [16, 64, 8]),  # fits into the cache
        ([*GELU[:2], node("Mul", "e", "g", to="y")], SHAPE),  # too short to pay
        (GELU, [1, 524287]),  # a prime number of elements
    ],
)
def test_where_blocks_would_not_pay_nothing_changes(nodes, shape):
    proto = model(nodes, ["y"], shape=shape)
    assert kinds(blocked(proto)) == kinds(proto)


def test_operands_that_are_broadcast_stay_outside():
    row = helper.make_tensor("row", TensorProto.FLOAT, [512], RNG.normal(size=512))
    proto = model([node("Add", "x", "row", to="moved"), *GELU[1:]], ["y"])
    proto.graph.node[1].input[0] = "moved"
    proto.graph.initializer.append(row)
    made = blocked(proto)
    assert kinds(made)[0] == "Add"
    assert "Scan" in kinds(made)
    given = feeds()
    (expected,), (found,) = run(proto, given), run(made, given)
    np.testing.assert_array_equal(found, expected)


def test_functions_that_share_their_beginning_share_a_loop():
    nodes = [*GELU[:7], node("Add", "e", "xd", to="z"), *GELU[7:]]
    given = feeds()
    made = blocked(model(nodes, ["z", "y"]))
    assert kinds(made) == ["Reshape", "Reshape", "Scan", "Reshape", "Reshape"]
    for expected, found in zip(run(model(nodes, ["z", "y"]), given), run(made, given), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_what_others_read_before_the_end_stays_outside():
    # The end of the chain reads a sum over its beginning: no loop can run both at once.
    nodes = [
        *GELU[2:6],
        node("ReduceMax", "xd", to="top", keepdims=0),
        node("Mul", "xd", "top", to="p"),
        *(node("Mul", one, "g", to=to) for one, to in ("pb", "bc", "cf", "fy")),
    ]
    given = feeds()
    made = blocked(model(nodes, ["y"]))
    assert kinds(made).count("Scan") == 2
    (expected,), (found,) = run(model(nodes, ["y"]), given), run(made, given)
    np.testing.assert_array_equal(found, expected)


def test_the_backward_pass_takes_nothing_of_the_forward_pass():
    proto = model(GELU, ["y"])
    for one in proto.graph.node[-2:]:
        one.metadata_props.add(key="popdist.pass", value="backward")
    made = blocked(proto)
    assert kinds(made)[-2:] == ["Where", "Mul"]
