"""Two devices of the CPU, for two local replicas, and hooks that end with their test."""

import pytest
import tensorflow as tf

from popdist_tf.versions import optimizer_kinds

(_CPU,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(_CPU, [tf.config.LogicalDeviceConfiguration()] * 2)


def _hooks():
    """Functions by name that Keras calls, as `popdist_tf.hooks` notes them in Keras' classes."""
    classes = {one for kind in (tf.keras.Model, *optimizer_kinds()) for one in kind.__mro__}
    for kind in classes:
        for name, held in vars(kind).items():
            if name.startswith("_popdist_") and isinstance(held, dict):
                yield held


@pytest.fixture(autouse=True)
def _no_strategy_of_another_test():
    """A program has one job; tests pretend several, and a strategy's checks outlive its test."""
    before = {id(held): dict(held) for held in _hooks()}
    yield
    for held in _hooks():
        kept = before.get(id(held), {})
        held.clear()
        held.update(kept)
