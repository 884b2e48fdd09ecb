"""Copies of models, and graphs that are cut down to some of their values."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

from popdist_onnx.graph.compat import clone, keep_only

TEXT = """<ir_version: 8, opset_import: ["" : 18]> g (float[N, 3] x, bool[1] c) => (float[N, 3] z)
<float[3] w = {1, 2, 3}> {
    a = Mul(x, w)
    b = Exp(a)
    y = If(c) <
        then_branch = one () => (float[N, 3] p) { p = Add(x, a) },
        else_branch = other () => (float[N, 3] q) { q = Sub(x, a) }
    >
    z = Add(y, b)
}"""
WEIGHT = np.array([1, 2, 3], np.float32)
DATA = {"x": np.arange(6, dtype=np.float32).reshape(2, 3) / 4, "c": np.array([True])}


@pytest.fixture
def model():
    return ir.from_proto(parser.parse_model(TEXT))


def computed(model):
    proto = ir.to_proto(model)
    known = {value.name for value in proto.graph.input}
    given = {name: array for name, array in DATA.items() if name in known}
    return dict(
        zip(
            [value.name for value in proto.graph.output],
            ReferenceEvaluator(proto).run(None, given),
            strict=True,
        )
    )


def test_a_copy_is_changed_alone_and_shares_its_weights(model):
    before, made = ir.to_proto(model), clone(model)
    assert ir.to_proto(made) == before
    assert made.graph.initializers["w"].const_value is model.graph.initializers["w"].const_value
    (branching,) = [node for node in made.graph if node.op_type == "If"]
    inner = branching.attributes["then_branch"].as_graph()[0]
    inner.replace_input_with(1, made.graph.initializers["w"])
    made.graph.inputs[0].shape = ir.Shape([2, 3])
    made.metadata_props["note"] = "changed"
    assert ir.to_proto(model) == before
    x, a = DATA["x"], DATA["x"] * WEIGHT
    np.testing.assert_allclose(computed(model)["z"], x + a + np.exp(a), rtol=1e-6)
    np.testing.assert_allclose(computed(made)["z"], x + WEIGHT + np.exp(a), rtol=1e-6)


@pytest.mark.parametrize(("name", "kept"), [("y", ["Mul", "If"]), ("b", ["Mul", "Exp"])])
def test_a_graph_is_cut_down_to_what_a_value_needs(model, name, kept):
    values = ir.convenience.create_value_mapping(model.graph)
    needed = keep_only(model.graph, [values[name]])
    assert [node.op_type for node in model.graph] == kept
    assert (values["c"] in needed) == (name == "y")
    users = {user.op_type for user, _ in values["a"].uses()}
    assert users == ({"Add", "Sub"} if name == "y" else {"Exp"})
    x, a = DATA["x"], DATA["x"] * WEIGHT
    wanted = {"y": x + a, "b": np.exp(a)}[name]
    assert list(computed(model)) == [name]
    np.testing.assert_allclose(computed(model)[name], wanted, rtol=1e-6)
