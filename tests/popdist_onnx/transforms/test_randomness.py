"""Random operators become inputs; running statistics become state."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import numpy_helper, parser

from popdist_onnx.errors import popart_exception
from popdist_onnx.graph.load import load
from popdist_onnx.transforms.autodiff import autodiff
from popdist_onnx.transforms.loss import add_sum
from popdist_onnx.transforms.randomness import random_inputs
from popdist_onnx.transforms.statistics import running_statistics
from tests.popdist_onnx.gradients.harness import normal, session


def parsed(text, opset=18, **weights):
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
    proto.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in weights.items()
    )
    return proto


DROPOUTS = [
    (10, "y = Dropout<ratio=0.75>(z)", {}),
    (18, "y = Dropout(z, r, t)", {"r": np.array(0.75, np.float32), "t": np.array(True)}),  # noqa: FBT003
]


@pytest.mark.parametrize(("opset", "node", "weights"), DROPOUTS)
def test_dropout_uses_one_mask_forward_and_backward(opset, node, weights):
    text = f"g (float[2,3] x) => (y) {{ z = Mul(x, w) {node} }}"
    proto = parsed(text, opset, w=np.full(3, 2, np.float32), **weights)
    model = random_inputs(load(proto))
    (mask,) = [value for value in model.graph.inputs if value.name != "x"]
    assert mask.name == "RandomMask___0"
    assert dict(mask.metadata_props) == {
        "popdist.random": "bernoulli",
        "popdist.random.keep": "0.25",
    }
    autodiff(add_sum(model, "y", "sum"), outputs=["x"])
    x, kept = normal(2, 3), np.array([[1, 0, 1], [0, 0, 1]], bool)
    y, _, gradient = session(model).run(None, {"x": x, mask.name: kept})
    np.testing.assert_allclose(y, x * 2 * kept * 4, rtol=1e-6)
    np.testing.assert_allclose(gradient, kept * 8.0)


@pytest.mark.parametrize(
    ("opset", "node", "training"),
    [(10, "y = Dropout<ratio=0.75>(x)", False), (18, "y = Dropout(x)", True)],
)
def test_dropout_that_does_not_drop_is_the_identity(opset, node, training):
    model = random_inputs(
        load(parsed(f"g (float[2] x) => (y) {{ {node} }}", opset)), training=training
    )
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert {one.op_type for one in model.graph} - {"Constant"} == {"Identity"}


def test_other_random_operators_become_inputs():
    model = random_inputs(
        load(
            parsed(
                "g (float[2] p) => (a, b, c) { a = RandomNormal<shape=[3], mean=1.0, seed=7.0>()"
                " b = RandomUniformLike<low=2.0, high=4.0>(p) c = Bernoulli(p) }"
            )
        )
    )
    described = {value.name: dict(value.metadata_props) for value in model.graph.inputs[1:]}
    assert [one["popdist.random"] for one in described.values()] == ["normal", "uniform", "uniform"]
    assert described["RandomMask___0"]["popdist.random.seed"] == "7.0"
    assert described["RandomMask___1"]["popdist.random.high"] == "4.0"
    draws = {
        name: np.full(n, 0.5, np.float32) for name, n in zip(described, (3, 2, 2), strict=True)
    }
    found = session(model).run(None, {"p": np.array([0.4, 0.6], np.float32), **draws})
    np.testing.assert_array_equal(found[2], [0, 1])


@pytest.mark.parametrize(("ratio", "mode", "wanted"), [(0.75, True, 4.0), (0.5, False, 1.0)])
def test_ratio_and_mode_may_be_inputs(ratio, mode, wanted):
    proto = parsed("g (float[4] x, float r, bool t) => (y, m) { y, m = Dropout(x, r, t) }")
    model = random_inputs(load(proto))
    drawn = np.array([0.1, 0.2, 0.9, 0.3], np.float32)
    feeds = {"x": np.ones(4, np.float32), "r": np.array(ratio, np.float32), "t": np.array(mode)}
    y, kept = session(model).run(None, {**feeds, "RandomMask___0": drawn})
    np.testing.assert_array_equal(kept, (drawn < 1 - ratio) | (not mode))
    np.testing.assert_array_equal(y, kept * wanted)


def test_a_ratio_of_one_is_refused():
    proto = parsed(
        "g (float[2] x) => (y) { y = Dropout(x, r, t) }",
        r=np.array(1, np.float32),
        t=np.array(True),  # noqa: FBT003
    )
    with pytest.raises(popart_exception, match="ratio value 1 is not valid"):
        random_inputs(load(proto))


def test_multinomial_draws_classes_by_their_probability():
    proto = parsed("g (float[1,3] p) => (y) { y = Multinomial<dtype=7, sample_size=20000>(p) }")
    model = random_inputs(load(proto))
    (mask,) = model.graph.inputs[1:]
    drawn = np.random.default_rng(0).random(list(mask.shape), np.float32)
    odds = np.array([[0.2, 0.5, 0.3]])
    (y,) = session(model).run(None, {"p": np.log(odds).astype(np.float32), mask.name: drawn})
    assert (y.shape, y.dtype) == ((1, 20000), np.int64)
    np.testing.assert_allclose(np.bincount(y[0], minlength=3) / 20000, odds[0], atol=0.015)


@pytest.mark.parametrize("opset", [9, 15])
def test_running_statistics_are_state(opset):
    outputs = "y, a, b, c, d" if opset == 9 else "y, a, b"
    mode = "" if opset == 9 else "training_mode=1, "
    proto = parsed(
        f"g (float[4,3,2] x) => (y) {{ {outputs} ="
        f" BatchNormalization<{mode}momentum=0.8>(x, s, o, mean, var) }}",
        opset,
        s=normal(3),
        o=normal(3),
        mean=normal(3),
        var=np.ones(3, np.float32),
    )
    model = running_statistics(load(proto))
    made = [value.name for value in model.graph.outputs]
    assert made == ["y", "UpdatedVar___mean", "UpdatedVar___var"]
    autodiff(add_sum(model, "y"))
    x = normal(4, 3, 2)
    _, mean, variance, _ = session(model).run(None, {"x": x})
    before = {one.name: numpy_helper.to_array(one) for one in proto.graph.initializer}
    batch = torch.tensor(x).transpose(0, 1).reshape(3, -1)
    np.testing.assert_allclose(
        mean, 0.8 * before["mean"] + 0.2 * batch.mean(1).numpy(), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(
        variance,
        0.8 * before["var"] + 0.2 * batch.var(1, unbiased=False).numpy(),
        rtol=1e-4,
    )
