"""Which optimizers may take the place of a session's."""

import pytest

from popdist_onnx.optimizers.adam import Adam
from popdist_onnx.optimizers.adaptive import Adaptive
from popdist_onnx.optimizers.optimizer import check_replacement
from popdist_onnx.optimizers.sgd import SGD, ConstSGD
from popdist_onnx.optimizers.values import ClipNormSettings, OptimizerReplacementError
from popdist_onnx.types.enums import AdamMode, SGDAccumulatorAndMomentum, WeightDecayMode

VARIABLE = {"defaultLearningRate": (0.1, False), "lossScaling": (2.0, False)}


def with_own(rate=(0.5, True), weight="w"):
    optimizer = SGD(VARIABLE)
    optimizer.insertSpecific(weight, {"learningRate": rate})
    return optimizer


def test_numbers_that_are_not_constant_may_change():
    check_replacement(SGD(VARIABLE), SGD(dict.fromkeys(VARIABLE, (7.0, False))))
    check_replacement(with_own((0.5, False)), with_own((0.1, False)))
    assert SGD(VARIABLE).validReplacement(SGD(VARIABLE))


def test_a_class_with_the_same_graph_may_take_the_place():
    check_replacement(SGD({"defaultLearningRate": (0.5, True)}), ConstSGD(0.5))


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (SGD(VARIABLE), Adam(VARIABLE), "another type"),
        (Adam(VARIABLE), Adaptive(VARIABLE), "another type"),
        (SGD(VARIABLE), SGD({}), "constness of default learningRate differs"),
        (SGD({}), SGD({"lossScaling": (1.0, False)}), "constness of default lossScaling"),
        (SGD({}), ConstSGD(0.2), "constant default learningRate differs"),
        (
            SGD(VARIABLE),
            SGD(VARIABLE, accumulatorAndMomentum=SGDAccumulatorAndMomentum.Separate),
            "accumulatorAndMomentum differs",
        ),
        (SGD({}), SGD({}, [ClipNormSettings.clipAllWeights(1.0)]), "clip norm settings"),
        (Adam({}), Adam({}, mode=AdamMode.Lamb), "mode differs"),
        (
            Adam({}),
            Adam({}, weight_decay_mode=WeightDecayMode.L2Regularization),
            "weight_decay_mode differs",
        ),
        (Adam({}), Adam({}, accl1_type="FLOAT16"), "accl1_type differs"),
        (Adam({}), Adam({}, scaled_optimizer_state=True), "scaled_optimizer_state differs"),
        (Adaptive({}), Adaptive({}, rmsprop_tf_variant=True), "rmsprop_tf_variant differs"),
        (SGD(VARIABLE), with_own(), "Other weights have a learningRate of their own"),
        (with_own(), with_own(weight="b"), "Other weights"),
        (with_own(), with_own((0.1, True)), "constant learningRate of w differs"),
        (with_own(), with_own((0.5, False)), "constness of learningRate of w"),
    ],
)
def test_what_needs_another_graph_is_refused(old, new, what):
    with pytest.raises(
        OptimizerReplacementError, match=f"^New optimizer is not a valid replacement.*{what}"
    ):
        check_replacement(old, new)
    assert not old.validReplacement(new)
