"""Every operator runs in half precision as well, near to what it gives in single precision."""

import numpy as np
import pytest

from tests.popdist_onnx.graphcore import evaluate
from tests.popdist_onnx.lowering.test_differentiable import SAMPLES


def of_type(dtype, arrays):
    arrays = map(np.asarray, arrays)
    return [one.astype(dtype) if one.dtype.kind == "f" else one for one in arrays]


@pytest.mark.parametrize("method", SAMPLES)
def test_half_precision(method):
    arrays, arguments = SAMPLES[method]
    halves = of_type(np.float16, arrays)
    found = evaluate(method, halves, **arguments)
    expected = evaluate(method, of_type(np.float32, halves), **arguments)
    if not isinstance(found, list):
        found, expected = [found], [expected]
    for half, single in zip(found, expected, strict=True):
        assert half.dtype in (np.float16, np.int32)
        np.testing.assert_allclose(half, single, rtol=1e-2, atol=1e-2)
