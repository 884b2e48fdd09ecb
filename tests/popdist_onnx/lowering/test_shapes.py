"""Elements in another order or number, against numpy and torch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from popdist_onnx.errors import popart_exception
from popdist_onnx.types.enums import InitType
from tests.popdist_onnx.graphcore import evaluate

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=3)


def numbered(shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@settings(deadline=None, max_examples=10)
@given(data=st.data(), shape=SHAPES)
def test_reverse(data, shape):
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1)))
    x = numbered(shape)
    found = evaluate("reverse", [x], dimensions=sorted(axes) or [0])
    np.testing.assert_array_equal(found, np.flip(x, tuple(axes) or 0))


@pytest.mark.parametrize(
    ("dimensions", "complaint"),
    [
        ([2, -2], "invalid dimension '-2'. Only positive dimensions are supported"),
        ([1, 1], "Dimension 1 appears multiple times"),
        ([3], "invalid dimension '3' for input tensor of rank 3"),
    ],
)
def test_dimensions_that_cannot_be_reversed(dimensions, complaint):
    with pytest.raises(popart_exception, match=complaint):
        evaluate("reverse", [numbered((2, 3, 4))], dimensions=dimensions)


@settings(deadline=None, max_examples=10)
@given(data=st.data(), shape=SHAPES)
def test_subsample(data, shape):
    strides = data.draw(st.lists(st.integers(1, 3), min_size=len(shape), max_size=len(shape)))
    x = numbered(shape)
    expected = x[tuple(slice(None, None, stride) for stride in strides)]
    np.testing.assert_array_equal(evaluate("subsample", [x], strides=strides), expected)


def test_reshape_and_depthtospace():
    x = numbered((1, 8, 2, 3))
    np.testing.assert_array_equal(evaluate("reshape", [x], shape=[4, -1]), x.reshape(4, -1))
    shuffled = torch.nn.functional.pixel_shuffle(torch.tensor(x), 2)
    np.testing.assert_array_equal(evaluate("depthtospace", [x], blocksize=2, mode="CRD"), shuffled)


@pytest.mark.parametrize("dtype", ["FLOAT", "INT32", "FLOAT16"])
def test_init_makes_zeros(dtype):
    found = evaluate("init", [], shape=[2, 3], data_type=dtype, init_type=InitType.Zero)
    np.testing.assert_array_equal(found, np.zeros((2, 3)))


@settings(deadline=None, max_examples=15)
@given(data=st.data(), shape=SHAPES, keep=st.booleans())
def test_reducemedian_is_the_lower_median_of_torch(data, shape, keep):
    axis = data.draw(st.integers(0, len(shape) - 1))
    x = np.random.default_rng(0).permutation(numbered(shape).ravel()).reshape(shape)
    values, indices = evaluate("reducemedian", [x], axes=[axis], keepdims=int(keep))
    expected = torch.median(torch.tensor(x), dim=axis, keepdim=keep)
    np.testing.assert_array_equal(values, expected.values)
    np.testing.assert_array_equal(indices, expected.indices)


def test_reducemedian_of_everything_counts_through_the_tensor():
    x = np.array([[5, 1, 9], [3, 7, 2]], np.float32)
    values, indices = evaluate("reducemedian", [x], keepdims=0)
    assert (values, x.ravel()[indices]) == (3, 3)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("reverse", {"dimensions": [2]}),
        ("reverse", {"dimensions": [0, -2]}),
        ("subsample", {"strides": [1]}),
        ("subsample", {"strides": [0, 1]}),
        ("reducemedian", {"axes": [5]}),
    ],
)
def test_dimensions_that_do_not_exist_are_refused(method, arguments):
    with pytest.raises(popart_exception, match="PD510"):
        evaluate(method, [numbered((2, 3))], **arguments)
