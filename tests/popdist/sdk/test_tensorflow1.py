"""Names of TensorFlow 1 where TensorFlow 2 has none; what it has stays as it is."""

from types import ModuleType

import pytest

from popdist.sdk.tensorflow1 import BELOW, serve


def module(name, **content):
    made = ModuleType(name)
    vars(made).update(content)
    return made


@pytest.fixture
def tensorflow():
    parts = {name: module(f"v1.{name}") for name in BELOW}
    parts["train"].AdamOptimizer = "Adam of 1"
    version1 = module("v1", ConfigProto="configuration", reduce_sum="sum of 1", **parts)
    parts = {name: module(f"tensorflow.{name}") for name in BELOW}
    found = module("tensorflow", reduce_sum="sum of 2", compat=module("compat", v1=version1))
    vars(found).update(parts)
    serve(found)
    serve(found)
    return found


def test_what_tensorflow_2_lacks_is_that_of_tensorflow_1(tensorflow):
    assert tensorflow.ConfigProto == "configuration"
    assert tensorflow.train.AdamOptimizer == "Adam of 1"


def test_what_tensorflow_2_has_is_its_own(tensorflow):
    assert tensorflow.reduce_sum == "sum of 2"


def test_what_neither_has_is_an_error_as_before(tensorflow):
    with pytest.raises(AttributeError, match="module 'tensorflow' has no attribute 'contrib'"):
        _ = tensorflow.contrib
    with pytest.raises(AttributeError, match="has no attribute '__wrapped__'"):
        _ = tensorflow.__wrapped__
