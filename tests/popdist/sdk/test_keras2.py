"""Keras as the SDK's TensorFlow had it, under the SDK's names."""

import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec

import numpy as np
import pytest

from tests.distributed.jobs import run_job

pytestmark = pytest.mark.skipif(
    find_spec("tensorflow") is None or version("keras").startswith("3."), reason="needs Keras 2"
)

NAMES = """
import tensorflow as tf
held = tf.keras  # before Keras has loaded
from tensorflow.python import ipu
assert held.ipu is tf.keras.ipu is ipu.keras
import tensorflow.keras.layers  # which makes another module of `tf.keras`
assert tf.keras is not held and tf.keras.ipu is ipu.keras
from keras.ipu import PipelineStage
import keras
from keras.optimizer_v2 import optimizer_v2
assert keras.ipu is ipu.keras
assert keras.optimizer_v2.gradient_descent.SGD is tf.keras.optimizers.SGD
for module in (keras, held, tf.keras):
    optimizer = module.optimizers.SGD(0.1, decay=0.5)
    assert isinstance(optimizer, optimizer_v2.OptimizerV2)
    assert module.optimizers.Optimizer is optimizer_v2.OptimizerV2
    assert issubclass(module.mixed_precision.LossScaleOptimizer, optimizer_v2.OptimizerV2)
from tensorflow.keras.optimizers import Adam
from ipu_tensorflow_addons.keras.optimizers import AdamIpuOptimizer, IpuOptimizerBase
assert issubclass(Adam, optimizer_v2.OptimizerV2)
assert issubclass(IpuOptimizerBase, optimizer_v2.OptimizerV2)
from keras.losses import LossFunctionWrapper, MeanSquaredError
from keras.engine.training import Model
assert issubclass(MeanSquaredError, LossFunctionWrapper) and Model is tf.keras.Model
from keras.optimizer_v2 import learning_rate_schedule
from keras.saving import save
from tensorflow.python.training.tracking import data_structures
from tensorflow.python.training.tracking.util import Checkpoint
assert learning_rate_schedule.ExponentialDecay is tf.keras.optimizers.schedules.ExponentialDecay
assert Checkpoint is tf.train.Checkpoint and data_structures.ListWrapper
assert save.load_model and keras.engine.training.Model is Model and not hasattr(keras, "nothing")
import keras.engine
assert not hasattr(keras.losses, "Nothing") and not hasattr(keras.engine, "Nothing")
assert issubclass(AdamIpuOptimizer, IpuOptimizerBase)
from keras.engine import data_adapter
from keras.mixed_precision import policy
row, pair = data_adapter.expand_1d((tf.ones(3), tf.ones((2, 2))))
assert row.shape == (3, 1) and pair.shape == (2, 2)
policy.set_policy("mixed_float16")
assert keras.mixed_precision.global_policy().name == "mixed_float16"
policy.set_policy("float32")
def drawn(seed):
    tf.random.set_seed(seed)
    layer = tf.keras.layers.Dense(4)
    layer.build((None, 3))
    return layer.kernel.numpy().tolist()
assert drawn(1) == drawn(1) != drawn(2)
print("fine")
"""


EARLY = """
from tensorflow.keras.optimizers import RMSprop
from tensorflow.python import ipu
import tensorflow as tf
assert RMSprop(decay=0.5) and RMSprop is tf.keras.optimizers.RMSprop
print("fine")
"""


HALF = """
import numpy as np
import tensorflow as tf
from tensorflow.python import ipu
x = np.random.default_rng(0).normal(size=(4, 5, 5, 3))
mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
for make in (tf.keras.layers.BatchNormalization, tf.compat.v1.keras.layers.BatchNormalization):
    layer = make(dtype="float16", momentum=0.5)
    output = layer(tf.constant(x, tf.float16), training=True)
    assert {weight.dtype for weight in layer.weights} == {output.dtype} == {tf.float16}
    np.testing.assert_allclose(output, (x - mean) / np.sqrt(variance + 1e-3), atol=5e-3)
    np.testing.assert_allclose(layer.moving_mean, 0.5 * mean, atol=1e-3)
    single = make()
    single(tf.constant(x, tf.float32))
    assert single.fused and {weight.dtype for weight in single.weights} == {tf.float32}
print("fine")
"""


@pytest.mark.parametrize("source", [NAMES, EARLY, HALF])
def test_each_module_of_keras_is_that_of_the_sdk(tmp_path, source):
    program = tmp_path / "train.py"
    program.write_text(source)
    ran = subprocess.run(
        [sys.executable, "-m", "popdist.sdk", str(program)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.stdout.split() == ["fine"], ran.stderr


DATA = np.random.default_rng(0).normal(size=(6, 8, 3))
TARGETS = np.random.default_rng(1).normal(size=(6, 8, 1))


def train():
    """Six updates, or three of two micro-batches each, by an optimizer of the old kind."""
    import popdist
    from popdist.sdk import finder

    finder.install()
    import tensorflow as tf
    from tensorflow.python import ipu

    class Noted(tf.compat.v1.train.GradientDescentOptimizer):
        """An optimizer of TensorFlow 1, as programs wrap others in."""

    share = popdist.getInstanceIndex(), popdist.getNumInstances()
    rows = [np.split(part, share[1], axis=1)[share[0]] for part in (DATA, TARGETS)]
    found = {}
    for name, optimizer in {
        "old": tf.keras.optimizers.SGD(0.1, decay=0.5),
        "first": Noted(0.1),
    }.items():
        strategy = ipu.distributed.popdist_strategy.PopDistStrategy()
        with strategy.scope():
            model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False)])
            model.build((None, 3))
            model.set_weights([np.ones((3, 1))])
            model.compile(optimizer, "mse", steps_per_execution=2)
            if name == "first":
                model.set_gradient_accumulation_options(
                    2, gradient_accumulation_reduction_method="mean"
                )
            data = tf.data.Dataset.from_tensor_slices(tuple(rows))
            model.fit(data, verbose=0)
        found[name] = model.get_weights()[0].ravel().tolist()
    return found


def expected(decay, together):
    """The same by numpy, on the global batch."""
    weights = np.ones((3, 1))
    for step in range(len(DATA) // together):
        part = slice(step * together, (step + 1) * together)
        x, y = DATA[part].reshape(-1, 3), TARGETS[part].reshape(-1, 1)
        rate = 0.1 / (1 + decay * step)
        weights = weights - rate * 2 * x.T @ (x @ weights - y) / len(x)
    return weights.ravel()


def test_optimizers_of_that_time_train_as_one_process():
    answers = run_job(train)
    assert answers[0] == answers[1]
    np.testing.assert_allclose(answers[0]["old"], expected(0.5, 1), rtol=1e-5)
    np.testing.assert_allclose(answers[0]["first"], expected(0, 2), rtol=1e-5)
