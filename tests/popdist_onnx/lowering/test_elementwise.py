"""Element by element operators of aiGraphcore against numpy and torch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.popdist_onnx.graphcore import evaluate


def floats(low, high):
    low, high = float(np.float32(low)), float(np.float32(high))
    return st.floats(low, high, allow_subnormal=False, width=32)


BITS = {
    "bitwiseand": np.bitwise_and,
    "bitwiseor": np.bitwise_or,
    "bitwisexor": np.bitwise_xor,
    "bitwisexnor": lambda a, b: ~(a ^ b),
}


def array(elements, dtype=np.float32):
    return hnp.arrays(dtype, hnp.array_shapes(max_dims=3, max_side=4), elements=elements)


@settings(deadline=None, max_examples=10)
@given(x=array(floats(-6, 6)))
def test_gelu_is_the_tanh_approximation(x):
    expected = torch.nn.functional.gelu(torch.tensor(x), approximate="tanh")
    np.testing.assert_allclose(evaluate("gelu", [x]), expected, rtol=1e-5, atol=1e-6)


@settings(deadline=None, max_examples=15)
@given(x=array(floats(-80, 80) | floats(-1e-3, 1e-3)))
def test_expm1_keeps_its_accuracy_near_zero(x):
    np.testing.assert_allclose(evaluate("expm1", [x]), np.expm1(x), rtol=2e-6, atol=1e-30)


@settings(deadline=None, max_examples=15)
@given(x=array(floats(-0.5, 1e30) | floats(-1e-3, 1e-3)))
def test_log1p_keeps_its_accuracy_near_zero(x):
    np.testing.assert_allclose(evaluate("log1p", [x]), np.log1p(x), rtol=2e-6, atol=1e-30)


def test_log1p_at_its_ends():
    x = np.array([-1, np.inf, 0], np.float32)
    np.testing.assert_array_equal(evaluate("log1p", [x]), [-np.inf, np.inf, 0])


@settings(deadline=None, max_examples=15)
@given(y=array(floats(-1e6, 1e6)), x=floats(-1e6, 1e6).filter(bool))
def test_atan2_finds_the_quadrant(y, x):
    x = np.array([x], np.float32)
    y = y + 0  # a negative zero counts as zero
    np.testing.assert_allclose(evaluate("atan2", [y, x]), np.arctan2(y, x), rtol=1e-5, atol=1e-6)


def test_atan2_on_the_axes():
    y = np.array([1, -1, 0, 0, 0], np.float32)
    x = np.array([0, 0, 0, 1, -1], np.float32)
    np.testing.assert_allclose(evaluate("atan2", [y, x]), np.arctan2(y, x), rtol=1e-6)


@settings(deadline=None, max_examples=15)
@given(
    a=array(floats(-100, 100)),
    b=floats(-9, 9).filter(lambda one: abs(one) > 1e-2),
)
def test_rests_of_divisions_have_the_signs_of_c_and_of_python(a, b):
    b = np.array([b], np.float32)
    np.testing.assert_array_equal(evaluate("fmod", [a, b]), np.fmod(a, b))
    # numpy's remainder is fmod moved to the divisor's sign, as is ours.
    np.testing.assert_array_equal(evaluate("remainder", [a, b]), np.remainder(a, b))


def test_rests_of_whole_numbers():
    a, b = np.array([7, -7, 7, -7], np.int32), np.array([3, 3, -3, -3], np.int32)
    np.testing.assert_array_equal(evaluate("fmod", [a, b]), np.fmod(a, b))
    np.testing.assert_array_equal(evaluate("remainder", [a, b]), np.remainder(a, b))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64"])
def test_bits(dtype):
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 127, (2, 2, 3)).astype(dtype)
    for name, reference in BITS.items():
        np.testing.assert_array_equal(evaluate(name, [a, b]), reference(a, b))
    np.testing.assert_array_equal(evaluate("bitwisenot", [a]), ~a)


def test_round_takes_the_even_one_of_two():
    x = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.4], np.float32)
    np.testing.assert_array_equal(evaluate("round", [x]), np.round(x))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_scales(dtype):
    a, b = np.arange(6).reshape(2, 3).astype(dtype), np.ones((2, 3), dtype)
    np.testing.assert_array_equal(evaluate("scale", [a], scale=0.5), a * a.dtype.type(0.5))
    np.testing.assert_array_equal(evaluate("scaledadd", [a, b], scale1=2.0), a + 2 * b)
    np.testing.assert_array_equal(
        evaluate("scaledadd", [a, b, np.array(3, dtype), np.array(4, dtype)]), 3 * a + 4 * b
    )


@pytest.mark.parametrize("name", ["detach", "nop", "printtensor", "replicatedallreduce"])
def test_what_leaves_its_input_alone(name):
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(evaluate(name, [x]), x)
