"""Group normalisation against torch, and in groups of every n-th channel."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from popdist_onnx.builder.builder import Builder
from popdist_onnx.errors import popart_exception
from popdist_onnx.graph.load import load
from popdist_onnx.lowering.layers import stride_groups
from tests.popdist_onnx.graphcore import evaluate, run


def operands(shape, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape).astype(np.float32) * 3 + 1
    return [x, *rng.standard_normal((2, shape[1])).astype(np.float32)]


@settings(deadline=None, max_examples=15)
@given(
    batch=st.integers(1, 3),
    groups=st.integers(1, 3),
    per_group=st.integers(1, 3),
    space=st.lists(st.integers(1, 3), max_size=2),
    epsilon=st.sampled_from([1e-5, 1e-2]),
)
def test_all_three_outputs_are_those_of_torch(batch, groups, per_group, space, epsilon):
    x, scale, bias = operands((batch, groups * per_group, *space))
    y, mean, inv_std = evaluate(
        "groupnormalization", [x, scale, bias], num_groups=groups, epsilon=epsilon
    )
    rows = torch.tensor(x).reshape(batch * groups, -1)
    np.testing.assert_allclose(mean, rows.mean(1), rtol=1e-4, atol=1e-5)
    expected = (rows.var(1, unbiased=False) + epsilon).rsqrt()
    np.testing.assert_allclose(inv_std, expected, rtol=1e-3)
    if rows.shape[1] > 1:
        operands_ = map(torch.tensor, (scale, bias))
        reference = torch.nn.functional.group_norm(torch.tensor(x), groups, *operands_, epsilon)
        np.testing.assert_allclose(y, reference, rtol=1e-3, atol=1e-4)


def test_strided_groups_take_every_nth_channel():
    x, scale, bias = operands((2, 6, 4))
    builder = Builder()
    ids = [builder.addInputTensor("FLOAT", one.shape) for one in (x, scale, bias)]
    outputs = builder.aiGraphcore.groupnormalization(ids, 3)
    for output in outputs:
        builder.addOutputTensor(output)
    model = load(builder.getModelProto())
    stride_groups(model.graph)
    y, mean, _ = run(model, dict(zip(ids, (x, scale, bias), strict=True)))
    order = [channel for group in range(3) for channel in range(group, 6, 3)]
    reference = torch.nn.functional.group_norm(torch.tensor(x[:, order]), 3).numpy()
    unordered = reference[:, np.argsort(order)] * scale[:, None] + bias[:, None]
    np.testing.assert_allclose(y, unordered, rtol=1e-4, atol=1e-5)
    groups = [x[sample, group::3].mean() for sample in range(2) for group in range(3)]
    np.testing.assert_allclose(mean, groups, rtol=1e-4)


@pytest.mark.parametrize("groups", [0, 4])
def test_groups_that_do_not_divide_the_channels_are_refused(groups):
    with pytest.raises(popart_exception, match="cannot divide 6 channels"):
        evaluate("groupnormalization", operands((2, 6)), num_groups=groups)
