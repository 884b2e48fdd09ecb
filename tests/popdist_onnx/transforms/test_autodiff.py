"""What autodiff makes of a graph as a whole."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from popdist_onnx.errors import popart_exception
from popdist_onnx.graph import names
from popdist_onnx.graph.load import load, save
from popdist_onnx.transforms.autodiff import autodiff, gradients_of
from popdist_onnx.transforms.loss import add_cross_entropy, add_squared_error, add_sum, set_loss
from tests.popdist_onnx.gradients.harness import session


def model(text: str, opset: int = 18, **weights: np.ndarray) -> onnx.ModelProto:
    header = f'<ir_version: 8, opset_import: ["" : {opset}, "ai.graphcore" : 1]>'
    proto = parser.parse_model(header + text)
    proto.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in weights.items()
    )
    return proto


def run(graph, **feeds):
    return session(graph).run(None, feeds)


X = np.array([[1.0, -2.0, 3.0]], np.float32)
W = np.array([2.0, 3.0, 4.0], np.float32)


def test_gradients_have_published_names_and_cover_the_way_only():
    proto = model(
        "g (float[1,3] x) => (float loss) {"
        " y = Mul(x, w) z = Relu(y) aside = Exp(x) loss = ReduceSum<keepdims=0>(z) }",
        w=W,
    )
    graph = autodiff(set_loss(load(proto), "loss")).graph
    made = {value.name for node in graph for value in node.outputs}
    found = {name for name in made if name.startswith(names.GRADIENT)}
    assert found == {f"Gradient___{name}" for name in ("loss", "z", "y", "w")}
    marks = {node.metadata_props.get(names.PASS) for node in graph if node.outputs[0].name in found}
    assert marks == {"backward"}
    (seed,) = [node for node in graph if node.metadata_props.get(names.ROLE) == names.LOSS_SEED]
    assert seed.outputs[0].name == "Gradient___loss"


def test_a_tensor_read_often_sums_its_edges():
    proto = model(
        "g (float[1,3] x) => (float loss) { a = Mul(x, w) b = Mul(a, a) c = Add(b, w)"
        " d = Sub(c, w) e = Mul(d, w) loss = ReduceSum<keepdims=0>(e) }",
        w=W,
    )
    training = autodiff(set_loss(load(proto), "loss"), outputs=["w", "x"])
    _, of_w, of_x = run(training, x=X)
    np.testing.assert_allclose(of_w, 3 * (X[0] * W) ** 2 / 1, rtol=1e-5)
    np.testing.assert_allclose(of_x, 2 * X * W**3, rtol=1e-5)


def test_detach_stops_the_gradient():
    proto = model(
        "g (float[1,3] x) => (float loss) { y = Mul(x, w) d = ai.graphcore.Detach(y)"
        " z = Mul(d, v) loss = ReduceSum<keepdims=0>(z) }",
        w=W,
        v=W,
    )
    training = autodiff(set_loss(load(proto), "loss"))
    assert set(gradients_of(training)) == {"v"}


def test_whole_numbers_and_unread_outputs_stop_nothing_else():
    proto = model(
        "g (float[1,3] x) => (float loss) { y = Mul(x, w) k = Constant<value_ints=[2]>()"
        " best, places = TopK<axis=1>(y, k) loss = ReduceSum<keepdims=0>(best) }",
        w=W,
    )
    training = autodiff(set_loss(load(proto), "loss"), outputs=["w"])
    np.testing.assert_allclose(run(training, x=X)[1], [1, 0, 3])


def test_a_free_batch_is_summed_at_run_time():
    proto = model(
        "g (float[n,3] x, float[n,1] t) => (float loss) { y = Add(x, w) z = Mul(y, t)"
        " s = Sigmoid(z) loss = ReduceMean<keepdims=0>(s) }",
        w=W,
    )
    training = autodiff(set_loss(load(proto), "loss"), outputs=["w", "t"])
    for batch in (1, 4):
        x, t = np.ones((batch, 3), np.float32), np.full((batch, 1), 0.5, np.float32)
        loss, of_w, of_t = run(training, x=x, t=t)
        s = 1 / (1 + np.exp(-(x + W) * t))
        slope = s * (1 - s) / s.size
        assert loss == pytest.approx(s.mean(), rel=1e-5)
        np.testing.assert_allclose(of_w, (slope * t).sum(0), rtol=1e-4)
        np.testing.assert_allclose(of_t, (slope * (x + W)).sum(1, keepdims=True), rtol=1e-4)


def test_shapes_known_only_at_run_time_are_summed_back():
    proto = model(
        "g (float[a,b] x, float[c,d] t) => (float loss) { y = Mul(x, t)"
        " loss = ReduceSum<keepdims=0>(y) }",
    )
    training = autodiff(set_loss(load(proto), "loss"), outputs=["x", "t"])
    x, t = np.full((2, 1), 3, np.float32), np.full((1, 5), 2, np.float32)
    _, of_x, of_t = run(training, x=x, t=t)
    np.testing.assert_array_equal(of_x, np.full((2, 1), 10))
    np.testing.assert_array_equal(of_t, np.full((1, 5), 6))


def test_frozen_and_setting_initializers_are_not_trained():
    proto = model(
        "g (float[1,3] x) => (float loss) { y = Mul(x, w) z = Mul(y, v) c = Clip(z, low)"
        " s = Mul(c, val_7) loss = ReduceSum<keepdims=0>(s) }",
        w=W,
        v=W,
        low=np.array(-9, np.float32),
        val_7=np.array(2, np.float32),
    )
    training = autodiff(set_loss(load(proto), "loss"), frozen=["v"])
    assert set(gradients_of(training)) == {"v", "w"} - {"v"}


def test_all_operators_without_rule_are_named_before_anything_runs():
    proto = model(
        "g (float[1,1,2,2] x) => (float loss) { y = Mul(x, w)"
        " a = MaxRoiPool<pooled_shape=[1,1]>(y, rois)"
        " b = MaxRoiPool<pooled_shape=[1,1]>(y, rois)"
        " c = Add(a, b) loss = ReduceSum<keepdims=0>(c) }",
        opset=13,
        rois=np.zeros((1, 5), np.float32),
        w=np.ones((1, 1, 2, 2), np.float32),
    )
    for node, name in zip(
        [n for n in proto.graph.node if n.op_type == "MaxRoiPool"], "pq", strict=True
    ):
        node.name = name
    with pytest.raises(popart_exception) as raised:
        autodiff(set_loss(load(proto), "loss"))
    assert raised.value.code == "PD522"
    text = str(raised.value)
    assert "node 'p' (ai.onnx MaxRoiPool-13)" in text
    assert "node 'q' (ai.onnx MaxRoiPool-13)" in text


def test_a_loop_on_the_way_has_a_gradient():
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["cond"], ["go_on"]),
            helper.make_node("Mul", ["state", "w"], ["next"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info("cond", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", onnx.TensorProto.FLOAT, [3]),
        ],
        [
            helper.make_tensor_value_info("go_on", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", onnx.TensorProto.FLOAT, [3]),
        ],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Loop", ["times", "", "x"], ["y"], name="my_loop", body=body),
            helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0),
        ],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, [])],
        [
            numpy_helper.from_array(np.array(2), "times"),
            numpy_helper.from_array(W, "w"),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    training = autodiff(set_loss(load(proto), "loss"), outputs=["w"])
    # The loop runs twice: y = x w^2.
    _, gradient = run(training, x=X[0])
    np.testing.assert_allclose(gradient, 2 * W * X[0], rtol=1e-6)


def test_a_branch_that_is_known_is_taken():
    def branch(name, op_type):
        value = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 3])
        return helper.make_graph([helper.make_node(op_type, ["x", "w"], [name])], name, [], [value])

    graph = helper.make_graph(
        [
            helper.make_node(
                "If", ["c"], ["y"], then_branch=branch("t", "Mul"), else_branch=branch("e", "Add")
            ),
            helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0),
        ],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3])],
        [helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, [])],
        [numpy_helper.from_array(np.array(True), "c"), numpy_helper.from_array(W, "w")],  # noqa: FBT003
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    training = autodiff(set_loss(load(proto), "loss"), outputs=["w"])
    np.testing.assert_allclose(run(training, x=X)[1], X[0])


@pytest.mark.parametrize(
    ("loss", "what"),
    [
        ("nothing", "Could not find loss tensor 'nothing'"),
        ("y", "Loss tensor, 'y', must be a scalar tensor"),
        ("n", "must hold floating-point numbers"),
    ],
)
def test_a_wrong_loss_is_refused(loss, what):
    proto = model(
        "g (float[1,3] x) => (float s) { y = Mul(x, w) n = Size(y) s = ReduceSum<keepdims=0>(y) }",
        w=W,
    )
    with pytest.raises(popart_exception, match=what) as raised:
        set_loss(load(proto), loss)
    assert raised.value.code == "PD523"


def test_a_model_without_loss_is_refused():
    with pytest.raises(popart_exception, match="has no loss"):
        autodiff(load(model("g (float[1,3] x) => (float[1,3] y) { y = Mul(x, w) }", w=W)))


def test_gradients_of_unknown_tensors_are_refused():
    proto = model("g (float[1,3] x) => (float l) { l = ReduceSum<keepdims=0>(x) }")
    with pytest.raises(popart_exception, match="graph does not have"):
        autodiff(set_loss(load(proto), "l"), wanted=["q"])


def test_losses_can_be_added():
    text = "g (float[1,3] x) => (float[1,3] y) { y = Mul(x, w) }"
    for add, feeds, expected in (
        (add_squared_error, {"target": np.zeros((1, 3), np.float32)}, ((X * W) ** 2).mean()),
        (add_sum, {}, (X * W).mean()),
        (
            add_cross_entropy,
            {"labels": np.array([2])},
            np.log(np.exp(X * W).sum()) - (X * W)[0, 2],
        ),
    ):
        training = autodiff(add(load(model(text, w=W)), "y"))
        proto = save(training)
        onnx.checker.check_model(proto, full_check=True)
        loss = run(proto, x=X, **feeds)[1]
        assert loss == pytest.approx(expected, rel=1e-4, abs=1e-4)
