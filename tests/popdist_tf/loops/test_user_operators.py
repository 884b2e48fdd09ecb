"""Operators of compiled libraries as functions of the host; expectations come from numpy."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from popdist_tf import ipu
from popdist_tf.errors import OperatorError

ROOT = Path(__file__).parents[3]
X = np.array([1.0, 2.0, 3.0], np.float32)
OUTS = {"output_types": [tf.float32], "output_shapes": [tf.TensorShape([3])]}
call = ipu.custom_ops.precompiled_user_op


@pytest.fixture(autouse=True)
def _product():
    @ipu.custom_ops.host_op("libproduct.so")
    def product(of):
        first, second = of.inputs
        return first * second**2 * float(of.attributes or 1)


@pytest.mark.parametrize("has_gradients", [None, [1]])
def test_a_function_computes_the_operator_and_its_gradients(has_gradients):
    with tf.GradientTape() as tape:
        x, y = tf.constant(X), tf.constant(X + 1)
        tape.watch([x, y])
        [made] = call(
            [x, y], "/build/libproduct.so", outs=OUTS, attributes="3",
            inputs_with_gradients=has_gradients,
        )  # fmt: skip
    np.testing.assert_allclose(made, 3 * X * (X + 1) ** 2)
    of_x, of_y = tape.gradient(made, [x, y])
    np.testing.assert_allclose(of_y, 6 * X * (X + 1))
    if has_gradients is None:
        np.testing.assert_allclose(of_x, 3 * (X + 1) ** 2)
    else:
        assert of_x is None


def test_graphs_call_functions_of_other_names_too():
    @ipu.custom_ops.host_op("libproduct", "Callback")
    def nothing(of):
        assert of.output_types == []

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        made = call([X, X], "libproduct.so", outs=OUTS)
        np.testing.assert_allclose(session.run(made)[0], X**3)
    assert ipu.ops.custom_ops.cpu_user_operation([X], "libproduct.so") == []


def test_an_operator_without_a_function_is_named():
    with pytest.raises(OperatorError, match=r"PD438[^?]*did you mean libproduct.Build"):
        call([X], "libprodukt.so", outs=OUTS)
    with pytest.raises(ValueError, match="Expected attributes to be a 'str' type"):
        call([X, X], "libproduct.so", outs=OUTS, attributes=3)


@pytest.mark.parametrize(
    "outs", [None, {**OUTS, "output_types": [tf.float16]}, {**OUTS, "output_shapes": [[4]]}]
)
def test_results_must_be_those_of_the_program(outs):
    with pytest.raises(OperatorError, match="other tensors than the program asks for"):
        call([X, X], "libproduct.so", outs=outs)


PROGRAM = """
import tensorflow as tf
from tensorflow.python import ipu
outs = {"output_types": [tf.float32], "output_shapes": [tf.TensorShape([])]}
print(float(ipu.custom_ops.precompiled_user_op([tf.constant(2.0)], "a/libtwice.so", outs=outs)[0]))
"""


def test_an_unchanged_program_gets_functions_that_a_variable_names(tmp_path):
    code = "from popdist_tf.ipu.custom_ops import host_op\n"
    code += "host_op('libtwice')(lambda call: 2 * call.inputs[0])\n"
    (tmp_path / "their_ops.py").write_text(code)
    (tmp_path / "program.py").write_text(PROGRAM)
    run = subprocess.run(
        [sys.executable, "-m", "popdist.sdk", "program.py"],
        env={**os.environ, "POPDIST_CUSTOM_OPS": "their_ops.py", "PYTHONPATH": str(ROOT)},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.stdout == "4.0\n", run.stderr
    bare = {**os.environ, "POPDIST_CUSTOM_OPS": "/nowhere/ops.py", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-m", "popdist.sdk", "program.py"],
        env=bare, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "PD438" in run.stderr
    assert "/nowhere/ops.py" in run.stderr
