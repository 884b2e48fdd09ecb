"""CTC: loss and gradient against torch."""

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from popdist_onnx.builder import Builder
from popdist_onnx.errors import popart_exception
from popdist_onnx.graph.load import load
from popdist_onnx.graph.tensor import Tape
from popdist_onnx.lowering.ctc import ctc_gradient
from popdist_onnx.lowering.registry import Operation
from popdist_onnx.types import ReductionType
from tests.popdist_onnx.graphcore import evaluate

REDUCTIONS = {
    ReductionType.Mean: "mean",
    ReductionType.Sum: "sum",
    ReductionType.NoReduction: "none",
}


def problem(seed, steps, batch, classes, longest, blank):
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((steps, batch, classes)).astype(np.float32)
    labels = [one for one in range(classes) if one != blank]
    targets = rng.choice(labels, (batch, longest)).astype(np.int32)
    target_lengths = rng.integers(0, longest + 1, batch).astype(np.uint32)
    input_lengths = rng.integers(1, steps + 1, batch).astype(np.uint32)
    return scores, targets, input_lengths, target_lengths


def of_torch(logs, targets, input_lengths, target_lengths, **arguments):
    wide = [torch.tensor(one.astype(np.int64)) for one in (targets, input_lengths, target_lengths)]
    return torch.nn.functional.ctc_loss(logs, *wide, **arguments)


@settings(deadline=None, max_examples=10)
@given(
    seed=st.integers(0, 999),
    steps=st.integers(1, 7),
    batch=st.integers(1, 3),
    longest=st.integers(1, 3),
    blank=st.integers(0, 2),
    reduction=st.sampled_from(list(REDUCTIONS)),
    zero=st.booleans(),
)
def test_the_loss_is_that_of_torch(seed, steps, batch, longest, blank, reduction, zero):
    scores, *rest = problem(seed, steps, batch, 4, longest, blank)
    logs = torch.log_softmax(torch.tensor(scores), -1)
    arguments = {"reduction": reduction, "blank": blank, "zeroInfinity": zero}
    found = evaluate("ctcloss", [logs.numpy(), *rest], **arguments)
    expected = of_torch(
        logs, *rest, blank=blank, reduction=REDUCTIONS[reduction], zero_infinity=zero
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def gradient_of(logs, rest, upstream, **arguments):
    builder = Builder()
    ids = [builder.addInputTensor("FLOAT", logs.shape)]
    ids += [builder.addInputTensor(str(one.dtype).upper(), one.shape) for one in rest]
    loss = builder.aiGraphcore.ctcloss(ids, **arguments)
    builder.addOutputTensor(loss)
    model = load(builder.getModelProto())
    (node,) = [one for one in model.graph if one.op_type == "Ctc"]
    tape = Tape(model.graph)
    flowing = tape.constant(np.asarray(upstream, np.float32))
    gradient = ctc_gradient(Operation(tape, node), flowing)
    model.graph.outputs[:] = [gradient.value]
    model.graph.remove(node)
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    wanted = {one.name for one in session.get_inputs()}
    feeds = dict(zip(ids, [logs, *rest], strict=True))
    return session.run(None, {name: feeds[name] for name in wanted})[0]


@settings(deadline=None, max_examples=8)
@given(
    seed=st.integers(0, 999),
    steps=st.integers(2, 7),
    longest=st.integers(1, 3),
    reduction=st.sampled_from(list(REDUCTIONS)),
)
def test_the_gradient_through_logsoftmax_is_that_of_torch(seed, steps, longest, reduction):
    scores, *rest = problem(seed, steps, 3, 4, longest, 0)
    x = torch.tensor(scores, requires_grad=True)
    logs = torch.log_softmax(x, -1)
    loss = of_torch(logs, *rest, reduction=REDUCTIONS[reduction], zero_infinity=True)
    weights = np.random.default_rng(seed).standard_normal(loss.shape).astype(np.float32)
    loss.backward(torch.tensor(weights))
    flow = gradient_of(logs.detach().numpy(), rest, weights, reduction=reduction, zeroInfinity=True)
    probabilities = np.exp(logs.detach().numpy())
    found = flow - probabilities * flow.sum(-1, keepdims=True)
    np.testing.assert_allclose(found, x.grad, rtol=1e-3, atol=1e-5)


def test_what_stands_beyond_a_targets_length_does_not_matter():
    scores, targets, input_lengths, _ = problem(1, 5, 1, 4, 3, 0)
    logs = torch.log_softmax(torch.tensor(scores), -1).numpy()
    lengths = np.array([1], np.uint32)
    short = evaluate("ctcloss", [logs, targets[:, :1], input_lengths, lengths])
    targets[:, 1:] = 77
    assert evaluate("ctcloss", [logs, targets, input_lengths, lengths]) == pytest.approx(short)


def test_shapes_that_do_not_fit_are_refused():
    scores, targets, input_lengths, target_lengths = problem(1, 5, 2, 4, 3, 0)
    with pytest.raises(popart_exception, match="fitting, known shapes"):
        evaluate("ctcloss", [scores, targets[:1], input_lengths, target_lengths])
