"""Rules of PopART's own operators: lowered forward, differentiated as they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import helper, numpy_helper
from torch.nn import functional

from popdist_onnx.gradients.registry import differentiable
from popdist_onnx.graph.load import load
from popdist_onnx.lowering.apply import lower
from popdist_onnx.transforms.autodiff import autodiff
from popdist_onnx.transforms.loss import set_loss
from tests.popdist_onnx.gradients.harness import integers, normal, session


def gradient(nodes, feeds, wanted, constants=None):
    """The gradient of the tensor ``loss`` (its sum, where it is none yet)."""
    graph = helper.make_graph(
        [*nodes, helper.make_node("ReduceSum", ["raw"], ["loss"], keepdims=0)],
        "case",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in feeds.items()
        ],
        [helper.make_tensor_value_info("loss", 1, [])],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.graphcore", 1)]
    model = load(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    keep = differentiable("ai.graphcore")
    training = lower(autodiff(set_loss(lower(model, keep=keep), "loss"), outputs=wanted))
    return session(training).run(None, feeds)


def nll(**attributes):
    return helper.make_node("Nll", ["p", "labels"], ["raw"], domain="ai.graphcore", **attributes)


def op(op_type, inputs, outputs, **attributes):
    return helper.make_node(op_type, inputs, outputs, domain="ai.graphcore", **attributes)


SOFTMAX = helper.make_node("Softmax", ["x"], ["p"], axis=-1)
LOGARITHM = helper.make_node("LogSoftmax", ["x"], ["p"], axis=-1)
LABELS = np.array([2, 0, 3, 3], np.int32)


@pytest.mark.parametrize("reduction", ["Mean", "Sum", "None"])
@pytest.mark.parametrize("ignored", [None, 3])
@pytest.mark.parametrize("logarithmic", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_nll(reduction, ignored, logarithmic, fused):
    attributes = {"reduction": reduction, "inputIsLogProbability": int(logarithmic)}
    if ignored is not None:
        attributes["ignoreIndex"] = ignored
    x = normal(4, 5)
    wanted = ["x"] if fused else ["x", "p"]
    nodes = [LOGARITHM if logarithmic else SOFTMAX, nll(**attributes)]
    loss, found, *rest = gradient(nodes, {"x": x, "labels": LABELS}, wanted)
    tensor = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    expected = functional.cross_entropy(
        tensor,
        torch.tensor(LABELS).long(),
        reduction="mean" if reduction == "Mean" else "sum",
        ignore_index=-100 if ignored is None else ignored,
    )
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    if fused:
        np.testing.assert_allclose(found, tensor.grad, atol=1e-6)
    else:
        by_shape = [one for one in (found, *rest) if np.allclose(one, tensor.grad, atol=1e-5)]
        assert by_shape, "neither gradient is that of x"


def test_nll_clamps_small_probabilities_as_published():
    p = np.array([[0.0, 1.0]], np.float32)
    loss, found = gradient([nll(reduction="Sum")], {"p": p, "labels": integers(0)}, ["p"])
    assert loss == pytest.approx(-np.log(1e-7), rel=1e-5)
    np.testing.assert_allclose(found, [[-1e10, 0]], rtol=1e-5)


def test_gelu_is_the_tanh_form():
    x = normal(3, 4)
    _, found = gradient([op("Gelu", ["x"], ["raw"])], {"x": x}, ["x"])
    tensor = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    functional.gelu(tensor, approximate="tanh").sum().backward()
    np.testing.assert_allclose(found, tensor.grad, atol=2e-5)


@pytest.mark.parametrize("shape", [(2, 6, 4, 3), (3, 6)])
def test_group_normalization(shape):
    x, scale, bias, weight = normal(*shape), normal(6), normal(6), normal(*shape)
    nodes = [
        op("GroupNormalization", ["x", "s", "b"], ["y", "m", "i"], num_groups=2),
        helper.make_node("Mul", ["y", "c"], ["raw"]),
    ]
    feeds = {"x": x, "s": scale, "b": bias}
    _, *found = gradient(nodes, feeds, ["x", "s", "b"], {"c": weight})
    tensors = [torch.tensor(one, dtype=torch.float64, requires_grad=True) for one in feeds.values()]
    (functional.group_norm(tensors[0], 2, *tensors[1:]) * torch.tensor(weight)).sum().backward()
    for one in tensors:
        fits = [got for got in found if got.shape == tuple(one.shape)]
        assert any(np.allclose(got, one.grad, atol=2e-4) for got in fits)


def test_ctc():
    steps, batch, classes = 6, 2, 4
    log_probabilities = torch.tensor(normal(steps, batch, classes)).log_softmax(2)
    targets, inputs, lengths = integers(1, 2, 3, 1).reshape(2, 2), integers(6, 5), integers(2, 1)
    node = op("Ctc", ["x", "t", "i", "l"], ["raw"], reduction="Mean", blank=0)
    constants = {"t": targets, "i": inputs, "l": lengths}
    loss, found = gradient([node], {"x": log_probabilities.numpy()}, ["x"], constants)
    tensor = log_probabilities.double().requires_grad_()
    expected = functional.ctc_loss(tensor, *(torch.tensor(one) for one in constants.values()))
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    # torch's own gradient is that of the scores before the softmax; both give the same there.
    probabilities = log_probabilities.exp().double().numpy()
    before = found - probabilities * found.sum(2, keepdims=True)
    np.testing.assert_allclose(before, tensor.grad, atol=1e-4)


@pytest.mark.parametrize("reduction", ["Mean", "Sum"])
def test_l1_and_identity_loss(reduction):
    x = np.array([[1.0, -2.0, 0.0]], np.float32)
    count = 3 if reduction == "Mean" else 1
    node = helper.make_node(
        "L1", ["x"], ["raw"], domain="ai.graphcore", reduction=reduction, **{"lambda": 0.5}
    )
    _, found = gradient([node], {"x": x}, ["x"])
    np.testing.assert_allclose(found, np.sign(x) * 0.5 / count)
    node = op("IdentityLoss", ["x"], ["raw"], reduction=reduction)
    _, found = gradient([node], {"x": x}, ["x"])
    np.testing.assert_allclose(found, np.full_like(x, 1 / count))


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e25])
def test_atan2_everywhere(scale):
    """Also on the axes, at the origin, and where squares vanish or overflow."""
    near = np.array([-3, -1, 0, 0.5, 2], np.float32) * np.float32(scale)
    feeds = {"y": near.reshape(5, 1), "x": near}
    found = gradient([op("Atan2", ["y", "x"], ["raw"])], feeds, ["y", "x"])[1:]
    y, x = (torch.tensor(feeds[name], dtype=torch.float64, requires_grad=True) for name in "yx")
    torch.atan2(y, x).sum().backward()
    for got, wanted in zip(found, (y.grad, x.grad), strict=True):
        np.testing.assert_allclose(got, wanted.numpy(), rtol=1e-5, atol=1e-6 / scale)


def test_logarithm_and_exponential_around_one_beyond_their_domain():
    x = np.array([-3, -2, -1 + 1e-6, -0.5, 0, 1e-7, 4], np.float32)
    for name, slope in (("Log1p", 1 / (1 + x)), ("Expm1", np.exp(x))):
        found = gradient([op(name, ["x"], ["raw"])], {"x": x}, ["x"])[1]
        np.testing.assert_allclose(found, slope, rtol=1e-5)
