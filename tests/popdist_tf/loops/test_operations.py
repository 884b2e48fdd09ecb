"""Operations of device code that stand for TensorFlow's own."""

import importlib
import pkgutil

import numpy as np
import pytest
import tensorflow as tf

from popdist.sdk.surface import load
from popdist_tf import ipu


def test_activations():
    values = np.linspace(-2, 2, 9, dtype=np.float32)
    cubic = np.sqrt(2 / np.pi) * (values + 0.044715 * values**3)
    np.testing.assert_allclose(
        ipu.nn_ops.gelu(values), 0.5 * values * (1 + np.tanh(cubic)), rtol=1e-5, atol=1e-6
    )
    powers = np.exp(values) / np.exp(values).sum()
    np.testing.assert_allclose(ipu.ops.nn_ops.softmax(values, stable=True), powers, rtol=1e-5)


def test_rows_of_a_table():
    table = np.arange(6.0).reshape(3, 2)
    rows = ipu.embedding_ops.embedding_lookup(table, [2, 0], serialization_factor=2)
    assert rows.numpy().tolist() == [[4, 5], [0, 1]]


def test_functions_are_called_as_they_are():
    @ipu.functional_ops.outlined_function
    def doubled(x):
        return 2 * x

    @ipu.functional_ops.outlined_function(unique_sharding=True)
    def tripled(x):
        return 3 * x

    assert (doubled(2), tripled(2)) == (4, 6)


def test_a_program_alone_is_replica_0():
    assert ipu.replication_ops.replication_index().numpy() == 0


def test_printing(capfd):
    ipu.internal_ops.print_tensor(ipu.internal_ops.remap_deduce(tf.constant([1, 2])), name="held")
    assert "held [1 2]" in capfd.readouterr().err


def modules():
    for found in pkgutil.walk_packages(ipu.__path__, "popdist_tf.ipu."):
        if found.name == "popdist_tf.ipu.tree":
            continue  # the table that the others are made from
        gone = found.name.endswith(("ipu_estimator", "ipu_run_config"))
        if not gone or hasattr(tf.compat.v1, "estimator"):
            yield found.name.removeprefix("popdist_tf.ipu."), importlib.import_module(found.name)


def test_everything_that_is_offered_is_listed():
    listed = {entry.name for entry in load("tensorflow.python.ipu").entries}
    for path, module in modules():
        assert path in listed
        assert {f"{path}.{name}" for name in getattr(module, "__all__", ())} <= listed


def test_a_name_that_never_was_is_answered_with_a_near_one():
    with pytest.raises(AttributeError, match="did you mean 'IPUConfig'"):
        ipu.config.IPUConfg  # noqa: B018 - the access is the test
