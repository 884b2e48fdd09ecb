"""Weights that an exporter of torch wrote once, because they begin with equal content."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx import numpy_helper, parser

import popdist_onnx
from popdist_onnx.graph.exporters import Untie
from popdist_onnx.graph.load import load

RANDOM = np.array([1, 2], np.float32)


def parsed(**weights):
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) {'
        " b = Identity(a) c = Mul(x, a) y = Mul(c, b) }"
    )
    proto.graph.initializer.extend(numpy_helper.from_array(w, n) for n, w in weights.items())
    return proto


def test_copies_of_one_repeated_number_become_weights():
    proto = parsed(a=np.ones(2, np.float32))
    model = load(proto)
    assert list(model.graph.initializers) == ["a", "b"]
    assert [node.op_type for node in model.graph] == ["Mul", "Mul"]
    assert [tensor.name for tensor in proto.graph.initializer] == ["a"]


def test_weights_tied_on_purpose_stay_tied():
    assert not Untie()(ir.from_proto(parsed(a=RANDOM))).modified


def test_torch_writes_no_identity_for_weights_that_are_tied():
    proto = parsed(a=RANDOM)
    proto.producer_name = "pytorch"
    assert list(load(proto).graph.initializers) == ["a", "b"]
    # The newer exporter's is a tensor that a module has written and reads again.
    proto.graph.node[0].metadata_props.add(key=FX_NODE, value="%getitem_3 = ...")
    assert not Untie()(ir.from_proto(proto)).modified


FX_NODE = "pkg.torch.onnx.fx_node"
LAYER = "%{0} : [num_users=1] = call_function[target=torch.ops.aten.any](args = {1}, kwargs = {{}})"


def by_dynamo(*, merged):
    """Two layer norms and a scale, as torch 2.13 writes them with and without ``optimize``."""
    second = ("l1", "l1") if merged else ("l2", "l2")
    text = """<ir_version: 10, opset_import: ["" : 18], producer_name: "pytorch">
        g (float[2, 4] x) => (float[2, 4] y) {{
        a = LayerNormalization(x, "l1.weight", "l1.bias")
        b = Mul(a, val_74)
        c = Add(b, shift)
        y = LayerNormalization(c, "{}.weight", "{}.bias") }}""".format(*second)
    proto = parser.parse_model(text)
    texts = ["(%x, [4], %p_l1_weight, %p_l1_bias, 1e-05, False)", "(%a, 0.5)", "(%b, %b_shift)"]
    texts.append("(%add, [4], %p_l2_weight, %p_l2_bias, 1e-05, False)")
    for node, given in zip(proto.graph.node, texts, strict=True):
        node.metadata_props.add(key=FX_NODE, value=LAYER.format(node.output[0], given))
    layers = ["l1"] if merged else ["l1", "l2"]
    contents = {f"{one}.weight": np.ones(4, np.float32) for one in layers}
    contents |= {f"{one}.bias": np.zeros(4, np.float32) for one in layers}
    contents |= {"val_74": np.float32([0.5]), "shift": np.ones(4, np.float32)}
    proto.graph.initializer.extend(numpy_helper.from_array(w, n) for n, w in contents.items())
    return proto


def test_merged_parameters_of_the_newer_exporter_are_refused():
    with pytest.raises(popdist_onnx.popart_exception, match="PD593") as refused:
        popdist_onnx.Trainer(by_dynamo(merged=True), loss="mse", batch_size=2)
    assert "l2_bias, l2_weight" in str(refused.value)


def test_constants_and_buffers_of_the_newer_exporter_are_not_trained():
    trainer = popdist_onnx.Trainer(by_dynamo(merged=False), loss="mse", batch_size=2)
    layers = {f"{layer}.{kind}" for layer in ("l1", "l2") for kind in ("weight", "bias")}
    assert set(trainer.session.trained_weights) == layers


def test_constants_in_files_of_tf2onnx_are_not_trained(caplog):
    """Names and shapes as tf2onnx writes a GELU, the start of a recurrence, and a folded kernel."""
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[4, 2] x) => (float[4, 2] y) {'
        " a = MatMul(x, kernel) b = Mul(a, half) c = Add(b, start) d = Add(c, bias)"
        " y = MatMul(d, folded) }"
    )
    names = {
        "kernel": "net/dense/MatMul/ReadVariableOp:0",
        "bias": "net/dense/BiasAdd/ReadVariableOp:0",
        "half": "net/dense/Gelu/mul/x:0",
        "start": "net/gru/zeros/Const:0",
        "folded": "const_fold_opt__281",
    }
    shapes = {"kernel": (2, 2), "bias": (1,), "half": (), "start": (1, 2), "folded": (2, 2)}
    for node in proto.graph.node:
        node.input[:] = [names.get(one, one) for one in node.input]
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.full(shape, 0.5, np.float32), names[name])
        for name, shape in shapes.items()
    )
    assert len(popdist_onnx.Trainer(proto, loss="mse", optimizer="sgd", batch_size=4).trained) == 5
    proto.producer_name = "tf2onnx"
    trainer = popdist_onnx.Trainer(proto, loss="mse", optimizer="sgd", batch_size=4)
    assert {*trainer.trained} == {names[one] for one in ("kernel", "bias", "folded")}
    assert "tf2onnx leaves out biases of zeros" in caplog.text


def test_constants_in_files_of_skl2onnx_are_not_trained():
    """A `MinMaxScaler` with an `SGDClassifier`: the probabilities are ``[unity - p, p]``."""
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[4, 2] x) => (float[4, 2] y)'
        " <float[2] Mu_Mulcst = {0.5, 2.0}, float[2] Ad_Addcst = {0.0, 1.0},"
        "  float[2, 1] coef = {0.3, -0.4}, float[1] intercept = {0.1}, float[1] unity = {1.0}> {"
        " a = Mul(x, Mu_Mulcst) b = Add(a, Ad_Addcst) c = MatMul(b, coef) d = Add(c, intercept)"
        " p = Sigmoid(d) q = Sub(unity, p) y = Concat<axis = 1>(q, p) }"
    )
    proto.producer_name = "skl2onnx"
    trainer = popdist_onnx.Trainer(
        proto, loss="mse", optimizer="sgd", learning_rate=0.5, batch_size=4
    )
    assert {*trainer.trained} == {"coef", "intercept"}
    x = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    y = np.eye(2, dtype=np.float32)[[0, 1, 1, 0]]
    trainer.fit(x, y, epochs=3, shuffle=False)
    coef, bias = (torch.tensor(one, requires_grad=True) for one in ([[0.3], [-0.4]], [0.1]))
    optimizer = torch.optim.SGD([coef, bias], lr=0.5)
    scaled = torch.tensor(x) * torch.tensor([0.5, 2.0]) + torch.tensor([0.0, 1.0])
    for _ in range(3):
        optimizer.zero_grad()
        chance = torch.sigmoid(scaled @ coef + bias)
        both = torch.cat([1 - chance, chance], 1)
        torch.nn.functional.mse_loss(both, torch.tensor(y)).backward()
        optimizer.step()
    for name, wanted in {"coef": coef, "intercept": bias, "unity": torch.ones(1)}.items():
        got = trainer.weights[name]
        np.testing.assert_allclose(got, wanted.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_coefficients_of_classical_operators_are_named():
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18, "ai.onnx.ml" : 3]>'
        " g (float[4, 2] x) => (float[4, 1] y) {"
        " y = ai.onnx.ml.LinearRegressor"
        ' <coefficients = [1.0, 2.0], post_transform = "PROBIT"> (x) }'
    )
    trainer = popdist_onnx.Trainer(proto, loss="mse", optimizer="sgd", batch_size=4)
    with pytest.raises(popdist_onnx.popart_exception, match=r"Regressor of ai\.onnx\.ml"):
        trainer.fit(np.zeros((4, 2), np.float32), np.zeros((4, 1), np.float32))
