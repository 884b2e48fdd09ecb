"""CTC: loss and gradient against torch."""

import itertools

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from popdist_onnx.builder.builder import Builder
from popdist_onnx.errors import popart_exception
from popdist_onnx.graph.load import load
from popdist_onnx.graph.tensor import Tape
from popdist_onnx.lowering.ctc import ctc_gradient
from popdist_onnx.lowering.registry import Operation
from popdist_onnx.types.enums import ReductionType
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


def collapsed(alignment):
    """What an alignment says: repeated labels count once, blanks (0) not at all."""
    kept = [
        one for one, before in zip(alignment, (None, *alignment), strict=False) if one != before
    ]
    return tuple(one for one in kept if one != 0)


def by_enumeration(table):
    """Every labelling's probability, from all alignments."""
    found = {}
    for alignment in itertools.product(range(table.shape[1]), repeat=len(table)):
        score = sum(table[step, one] for step, one in enumerate(alignment))
        prefix = collapsed(alignment)
        found[prefix] = np.logaddexp(found.get(prefix, -np.inf), score)
    return sorted(found.items(), key=lambda one: -one[1])


def by_search(table, width):
    """Prefix beam search as it is published: a dictionary of prefixes."""
    beams = {(): (0.0, -np.inf)}
    for row in table:
        grown = {}

        def add(prefix, blank, label, grown=grown):
            old = grown.get(prefix, (-np.inf, -np.inf))
            grown[prefix] = (np.logaddexp(old[0], blank), np.logaddexp(old[1], label))

        for prefix, (blank, label) in beams.items():
            both = np.logaddexp(blank, label)
            add(prefix, both + row[0], -np.inf)
            for one in range(1, len(row)):
                repeats = prefix[-1:] == (one,)
                if repeats:
                    add(prefix, -np.inf, label + row[one])
                add((*prefix, one), -np.inf, (blank if repeats else both) + row[one])
        beams = dict(sorted(grown.items(), key=lambda one: -np.logaddexp(*one[1]))[:width])
    return [(prefix, np.logaddexp(*ends)) for prefix, ends in beams.items()]


@pytest.mark.parametrize("width", [60, 3])
def test_beam_search_finds_the_likeliest_labels(width):
    steps, paths = 5, 3
    logits = np.random.default_rng(width).standard_normal((steps, 3, 3)).astype(np.float32)
    table = torch.tensor(logits).log_softmax(2).numpy()
    lengths = np.array([5, 3, 0], np.uint32)
    scores, sizes, labels = evaluate(
        "ctcbeamsearchdecoder", [table, lengths], beamWidth=width, topPaths=paths
    )
    assert (sizes.dtype, labels.dtype) == (np.uint32, np.uint32)
    for sample, length in enumerate(lengths):
        rows = table[:length, sample].astype(np.float64)
        wanted = (by_enumeration(rows) if width > 3 else by_search(rows, width))[:paths]
        for path, (prefix, score) in enumerate(wanted):
            assert tuple(labels[sample, path, : sizes[sample, path]]) == prefix
            assert not labels[sample, path, sizes[sample, path] :].any()
            assert scores[sample, path] == pytest.approx(score, rel=1e-4)
    # Without data there is one labelling, which is empty.
    np.testing.assert_array_equal(scores[2], [0, -np.inf, -np.inf])


def test_beam_search_with_another_blank_gives_the_same_labels():
    table = torch.randn(6, 2, 4, generator=torch.Generator().manual_seed(1)).log_softmax(2).numpy()
    lengths = np.array([6, 4], np.uint32)
    first = evaluate("ctcbeamsearchdecoder", [table, lengths], topPaths=2)
    turned = np.roll(table, -1, axis=2)  # labels 0, 1, 2 and the blank 3
    second = evaluate("ctcbeamsearchdecoder", [turned, lengths], topPaths=2, blank=3)
    np.testing.assert_allclose(second[0], first[0], rtol=1e-5)
    np.testing.assert_array_equal((second[2] + 1) % 4, first[2])


def test_beam_search_refuses_more_paths_than_beams():
    with pytest.raises(popart_exception, match="more paths than beams"):
        evaluate(
            "ctcbeamsearchdecoder",
            [np.zeros((2, 1, 3), np.float32), np.ones(1, np.uint32)],
            beamWidth=2,
            topPaths=3,
        )
