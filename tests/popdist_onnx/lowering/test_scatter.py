"""What is moved to where indices say, against torch and a loop."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from popdist_onnx.errors import popart_exception
from popdist_onnx.types.enums import ScatterReduction
from tests.popdist_onnx.graphcore import evaluate

TORCH = {ScatterReduction.Sum: "sum", ScatterReduction.Max: "amax", ScatterReduction.Min: "amin"}


@settings(deadline=None, max_examples=15)
@given(
    data=st.data(),
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    reduction=st.sampled_from(list(TORCH)),
    size=st.integers(1, 5),
    started=st.booleans(),
)
def test_scatterreduce(data, shape, reduction, size, started):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    values = rng.standard_normal(shape).astype(np.float32)
    indices = rng.integers(0, size, shape).astype(np.int32)
    target = list(shape)
    target[axis] = size
    begin = rng.standard_normal(target).astype(np.float32) * started
    found = evaluate(
        "scatterreduce",
        [values, indices, *([begin] if started else [])],
        axis_size=size,
        axis=axis,
        reduction=reduction,
    )
    wide = torch.tensor(indices.astype(np.int64))
    expected = torch.tensor(begin).scatter_reduce(
        axis, wide, torch.tensor(values), TORCH[reduction], include_self=started
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_scatterreduce_takes_one_index_per_position():
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    found = evaluate("scatterreduce", [values, np.array([1, 1, 0], np.int32)], axis_size=2, axis=0)
    np.testing.assert_array_equal(found, [[4, 5], [2, 4]])


@pytest.mark.parametrize(
    ("index", "arguments", "sentence"),
    [
        ((3, 1), {}, "Partial broadcasting of indices is not currently supported."),
        ((3, 4), {}, "Failed to expand 'indices' shape [3, 4] to match 'src' shape [3, 2] using"),
        ((3, 2, 1), {}, "Invalid rank for indices input."),
        ((3, 2), {"axis": 4}, "ScatterReduceOp::setup axis = 4 is outside the acceptable range"),
        ((3, 2), {"axis_size": 0}, "ScatterReduceOp axis_size = 0 is not valid: must be > 0"),
    ],
)
def test_scatterreduce_refuses_in_published_words(index, arguments, sentence):
    operands = [np.ones((3, 2), np.float32), np.ones(index, np.int32)]
    with pytest.raises(popart_exception) as refused:
        evaluate("scatterreduce", operands, **({"axis_size": 2} | arguments))
    assert refused.value.args[0].startswith(sentence)


@settings(deadline=None, max_examples=10)
@given(data=st.data(), zero=st.booleans())
def test_sequenceslice_copies_runs_of_rows(data, zero):
    runs = data.draw(st.integers(1, 3))
    lengths = [data.draw(st.integers(0, 3)) for _ in range(runs)]
    begins = [data.draw(st.integers(0, 6 - one)) for one in lengths]
    ends = [data.draw(st.integers(0, 7 - one)) for one in lengths]
    source = np.arange(12, dtype=np.float32).reshape(6, 2) + 1
    destination = -np.arange(14, dtype=np.float32).reshape(7, 2) - 1
    expected = np.zeros_like(destination) if zero else destination.copy()
    for length, begin, end in zip(lengths, begins, ends, strict=True):
        expected[end : end + length] = source[begin : begin + length]
    numbers = [np.array(one, np.uint32) for one in (lengths, begins, ends)]
    found = evaluate("sequenceslice", [source, destination, *numbers], zeroUnused=zero)
    np.testing.assert_array_equal(found, expected)
