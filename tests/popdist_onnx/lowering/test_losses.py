"""Losses of aiGraphcore against torch and numpy, over generated shapes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from popdist_onnx.errors import popart_exception
from popdist_onnx.types.enums import ReductionType
from tests.popdist_onnx.graphcore import evaluate

REDUCTIONS = {
    ReductionType.Mean: "mean",
    ReductionType.Sum: "sum",
    ReductionType.NoReduction: "none",
}


def draw_rows(data, most_dims=2):
    rows = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=most_dims))
    classes = data.draw(st.integers(1, 6))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    scores = rng.standard_normal((*rows, classes)).astype(np.float32)
    labels = rng.integers(0, classes, rows).astype(data.draw(st.sampled_from(["int32", "uint32"])))
    return torch.log_softmax(torch.tensor(scores), -1), labels


@settings(deadline=None, max_examples=15)
@given(
    data=st.data(),
    reduction=st.sampled_from(list(REDUCTIONS)),
    log_probabilities=st.booleans(),
    ignored=st.sampled_from([None, 0, 1, -1]),
)
def test_nllloss_is_that_of_torch(data, reduction, log_probabilities, ignored):
    logs, labels = draw_rows(data)
    given_ = logs if log_probabilities else logs.exp()
    found = evaluate(
        "nllloss",
        [given_.numpy(), labels],
        reduction=reduction,
        ignoreIndex=ignored,
        inputIsLogProbability=log_probabilities,
    )
    flat = torch.nn.functional.nll_loss(
        logs.reshape(-1, logs.shape[-1]),
        torch.tensor(labels.astype(np.int64)).reshape(-1),
        ignore_index=-100 if ignored is None else ignored,
        reduction=REDUCTIONS[reduction],
    ).numpy()
    if reduction is ReductionType.Mean and ignored is not None and np.all(labels == ignored):
        flat = np.float32(0)  # torch gives NaN; the published divisor is at least one
    np.testing.assert_allclose(found.reshape(flat.shape), flat, rtol=1e-5, atol=1e-6)
    if reduction is ReductionType.NoReduction:
        assert found.shape == labels.shape


@pytest.mark.parametrize(("dtype", "smallest"), [("float32", 1e-7), ("float16", 6.104e-5)])
def test_nllloss_clamps_what_is_no_probability(dtype, smallest):
    values = np.array([[-3.0, 2.0], [0.0, 1.0]], dtype)
    found = evaluate("nllloss", [values, np.array([0, 0], "int32")], reduction=ReductionType.Sum)
    assert found == pytest.approx(-2 * np.log(smallest), rel=1e-3)


def test_nllloss_ignores_labels_that_are_no_classes():
    probabilities = np.full((3, 2), 0.5, np.float32)
    labels = np.array([-100, 1, -100], "int32")
    assert evaluate("nllloss", [probabilities, labels], ignoreIndex=-100) == pytest.approx(
        np.log(2)
    )


@pytest.mark.parametrize("label", [-1, 2])
def test_nllloss_stops_at_a_label_that_is_no_class(label):
    probabilities = np.full((1, 2), 0.5, np.float32)
    with pytest.raises(Exception, match="Out of range value"):
        evaluate("nllloss", [probabilities, np.array([label], "int32")])


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        (np.zeros((2, 1), "int32"), "one label per row"),
        (np.zeros(3, "int32"), "one label per row"),
        (np.zeros(2, "float32"), "fixed-point"),
    ],
)
def test_nllloss_refuses_labels_that_do_not_fit(labels, complaint):
    with pytest.raises(popart_exception, match=complaint):
        evaluate("nllloss", [np.full((2, 3), 0.3, np.float32), labels])


@settings(deadline=None, max_examples=8)
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    reduction=st.sampled_from(list(REDUCTIONS)),
)
def test_l1loss_and_identityloss_are_reduced_as_asked(shape, reduction):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    reduce = {"mean": np.mean, "sum": np.sum, "none": np.asarray}[REDUCTIONS[reduction]]
    found = evaluate("l1loss", [x], lambda_=0.3, reduction=reduction)
    np.testing.assert_allclose(found, reduce(0.3 * np.abs(x)), rtol=1e-5)
    found = evaluate("identityloss", [x], reduction=reduction)
    np.testing.assert_allclose(found, reduce(x), rtol=1e-5, atol=1e-6)


def test_l1loss_takes_the_published_name_of_its_factor():
    found = evaluate("l1loss", [np.array([-2.0], np.float32)], **{"lambda": 0.5})
    assert found == pytest.approx(1)


def test_l1loss_refuses_a_scalar():
    with pytest.raises(popart_exception, match="at least one dimension"):
        evaluate("l1loss", [np.float32(1).reshape(())], lambda_=1.0)
