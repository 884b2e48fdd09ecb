"""Slices at offsets known only at run time, against numpy; they wrap around at the end."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popdist_onnx.errors import popart_exception
from tests.popdist_onnx.graphcore import evaluate


@st.composite
def slices(draw):
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    axes = draw(st.permutations(range(len(shape))))[: draw(st.integers(1, len(shape)))]
    sizes = [draw(st.integers(1, shape[axis])) for axis in axes]
    offsets = [draw(st.integers(0, shape[axis] - 1)) for axis in axes]
    return shape, list(axes), sizes, offsets


def reference(shape, axes, sizes, offsets):
    """The positions of the slice, as `np.ix_` takes them."""
    positions = [np.arange(length) for length in shape]
    for axis, size, offset in zip(axes, sizes, offsets, strict=True):
        positions[axis] = (offset + np.arange(size)) % shape[axis]
    return np.ix_(*positions)


@settings(deadline=None, max_examples=12)
@given(slices())
def test_slices_update_add_and_zero(case):
    shape, axes, sizes, offsets = case
    place = reference(*case)
    x = np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)
    piece = -x[place] * 2
    offset = np.array(offsets, np.uint32)
    arguments = {"axes": axes, "sizes": sizes}
    np.testing.assert_array_equal(evaluate("dynamicslice", [x, offset], **arguments), x[place])
    changed = x.copy()
    changed[place] = piece
    found = evaluate("dynamicupdate", [x, offset, piece], **arguments)
    np.testing.assert_array_equal(found, changed)
    changed = x.copy()
    changed[place] += piece
    found = evaluate("dynamicadd", [x, offset, piece], **arguments)
    np.testing.assert_array_equal(found, changed)
    changed = x.copy()
    changed[place] = 0
    np.testing.assert_array_equal(evaluate("dynamiczero", [x, offset], **arguments), changed)


@pytest.mark.parametrize(
    "arguments",
    [{"axes": [0], "sizes": [1, 1]}, {"axes": [0], "sizes": [5]}, {"axes": [2], "sizes": [1]}],
)
def test_slices_that_do_not_fit_are_refused(arguments):
    with pytest.raises(popart_exception, match="PD510"):
        evaluate(
            "dynamicslice", [np.ones((2, 2), np.float32), np.array([0], np.uint32)], **arguments
        )


def test_slices_without_their_leading_dimension():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    offset, arguments = np.array([1], np.uint32), {"axes": [0], "sizes": [1]}
    piece = np.zeros((3, 4), np.float32)
    found = evaluate("dynamicslice", [x, offset, piece], **arguments)
    np.testing.assert_array_equal(found, x[1])
    found = evaluate("dynamicupdate", [x, offset, piece], **arguments)
    np.testing.assert_array_equal(found, np.stack([x[0], piece]))
