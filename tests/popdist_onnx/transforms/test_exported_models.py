"""Gradients of whole networks that torch exported, held to torch's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from popdist_onnx.graph.load import load
from popdist_onnx.transforms.autodiff import autodiff, gradients_of
from popdist_onnx.transforms.loss import add_cross_entropy
from tests.popdist_onnx.gradients.harness import session
from tests.popdist_onnx.torch_models import MODELS, batch, exported

# torch's exporter knows triu since opset 14.
CASES = [(name, opset) for name in MODELS for opset in (14 if name == "gpt2" else 11, 17)]


@pytest.mark.parametrize(("name", "opset"), CASES)
def test_gradients_equal_torchs(name, opset):
    torch.manual_seed(1)
    make, shape = MODELS[name]
    model, x = make(), batch(shape)
    scores = model(x)
    labels = torch.randint(0, 5, (scores.shape[0],))
    training = add_cross_entropy(load(exported(model, x, opset)), "scores")
    graph = autodiff(training).graph
    found = gradients_of(training)
    graph.outputs[:] = [next(one for one in graph.outputs if one.name == "loss"), *found.values()]
    loss, *gradients = session(training).run(None, {"x": x.numpy(), "labels": labels.numpy()})

    model.double().zero_grad()
    expected = functional.cross_entropy(model(x.double() if x.is_floating_point() else x), labels)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    trained = {one: value for one, value in model.named_parameters() if value.grad is not None}
    largest = max(float(one.grad.abs().max()) for one in trained.values())
    by_name = dict(zip(found, gradients, strict=True))
    own = {one: parameter for one, parameter in trained.items() if one in by_name}
    if not name.startswith(("lstm", "gru", "rnn")):
        assert own.keys() == trained.keys()
    for one, parameter in own.items():
        np.testing.assert_allclose(
            by_name[one] / largest, parameter.grad / largest, atol=2e-4, err_msg=one
        )
