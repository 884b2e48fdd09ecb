"""What is stated of a model that is deleted before the program ends."""

import gc

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import record

from popdist.agreement import digest
from popdist.checks import trained
from popdist_tf.checks import end


@pytest.fixture
def stated(monkeypatch):
    """The statement of this process, as one of several."""
    for module in (trained, end):
        monkeypatch.setattr(module, "is_several", lambda: True)
    monkeypatch.setattr(trained, "END", trained._End())
    return trained.END._stated


@pytest.mark.parametrize("strategy", [tf.distribute.get_strategy, tf.distribute.MirroredStrategy])
def test_weights_are_stated_while_a_function_is_built_and_are_not_read_by_it(stated, strategy):
    values = np.array([1.0, 2.0], np.float32)
    held, read = [tf.keras.optimizers.SGD()], []
    with strategy().scope():
        variable = tf.Variable(values, name="weight")
        end.compare_at_end(held[0], [variable])

        @tf.function
        def build(x):
            with record.VariableWatcher() as watcher:
                held.clear()
                gc.collect()
            read.extend(watcher.watched_variables())
            return x

        build(tf.constant(1.0))
    assert [*stated.values()] == [digest(values.tobytes())]
    assert not read
