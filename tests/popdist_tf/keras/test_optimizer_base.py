"""The base class of programs' own optimizers, by momentum in numpy."""

from importlib.metadata import version

import numpy as np
import pytest
import tensorflow as tf

from popdist_tf.errors import OptimizerError
from popdist_tf.ipu.addons.keras.optimizers import IpuOptimizerBase


class Momentum(IpuOptimizerBase):
    """An optimizer as a program writes it, whose state has fewer bits than its variable."""

    def __init__(self, name="Momentum", **kwargs):
        super().__init__(name, **kwargs)
        self._set_hyper("learning_rate", 0.5)

    def get_slot_dtype(self, var, slot_name):
        assert slot_name == "kept"
        return tf.float16 if var.shape.rank else var.dtype

    def _create_slots(self, var_list):
        for var in var_list:
            self.add_slot(var, "kept", initializer="ones")

    def _resource_apply_dense(self, grad, var, apply_state=None):  # noqa: ARG002 - of Keras
        kept = self.get_slot(var, "kept")
        kept.assign(0.5 * kept + tf.cast(grad, kept.dtype))
        return var.assign_sub(0.5 * tf.cast(kept, var.dtype))


@pytest.mark.skipif(not version("keras").startswith("2."), reason="Keras 3 has no such kind")
def test_states_have_the_dtypes_of_the_subclass():
    optimizer, variables = Momentum(), [tf.Variable([8.0, 4.0]), tf.Variable(2.0)]
    for _ in range(2):
        optimizer.apply_gradients([(tf.ones_like(one), one) for one in variables])
    kept = [optimizer.get_slot(one, "kept") for one in variables]
    assert [one.dtype for one in kept] == [tf.float16, tf.float32]
    # 1.5 and 1.75 after the first and the second step.
    np.testing.assert_array_equal(variables[0], [8 - 1.625, 4 - 1.625])
    assert float(variables[1]) == 2 - 1.625
    assert optimizer.add_slot(variables[1], "other", dtype=tf.float16).dtype == tf.float16
    assert optimizer.add_slot_with_dtype(variables[1], "third", tf.float16).dtype == tf.float16
    assert optimizer.opt_dtypes == (tf.float32,)


@pytest.mark.skipif(version("keras").startswith("2."), reason="Keras 2 has that kind")
def test_keras_3_has_no_optimizers_of_that_kind():
    with pytest.raises(OptimizerError, match="the kind that Keras had"):
        Momentum()
