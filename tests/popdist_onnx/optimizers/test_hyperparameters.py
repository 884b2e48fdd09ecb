"""What the optimizers take and refuse, and what they tell about themselves."""

import numpy as np
import pytest

from popdist_onnx.errors import popart_exception
from popdist_onnx.optimizers.adam import Adam
from popdist_onnx.optimizers.adaptive import Adaptive
from popdist_onnx.optimizers.sgd import SGD, ConstSGD
from popdist_onnx.optimizers.values import (
    ClipNormMode,
    ClipNormSettings,
    OptimizerSettingError,
    OptimizerValue,
    OptimizerValueError,
)
from popdist_onnx.types.enums import (
    AdamMode,
    AdaptiveMode,
    SGDAccumulatorAndMomentum,
    WeightDecayMode,
)

DEFAULTS = {
    SGD: {
        "learningRate": 0.1,
        "weightDecay": 0.0,
        "momentum": 0.0,
        "dampening": 0.0,
        "velocityScaling": 1.0,
        "lossScaling": 1.0,
    },
    Adam: {
        "learningRate": 0.1,
        "weightDecay": 0.0,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-6,
        "lossScaling": 1.0,
        "maxWeightNorm": 10.0,
    },
    Adaptive: {
        "learningRate": 0.01,
        "weightDecay": 0.0,
        "alpha": 0.99,
        "momentum": 0.0,
        "eps": 1e-6,
        "lossScaling": 1.0,
    },
}


@pytest.mark.parametrize("kind", DEFAULTS)
def test_defaults_are_the_published_ones_and_constant(kind):
    for key, value in DEFAULTS[kind].items():
        assert kind({}).value(key) == OptimizerValue(value, isConst=True)


def test_other_defaults_are_the_published_ones():
    assert SGD({}).getSGDAccumulatorAndMomentum() is SGDAccumulatorAndMomentum.Combined
    adam = Adam({})
    assert (adam.mode, adam.getWeightDecayMode()) == (AdamMode.Adam, WeightDecayMode.Decay)
    assert (adam.accl1_type.name, adam.accum_type.name) == ("FLOAT", "UNDEFINED")
    assert not adam.useScaledOptimizerState()
    adaptive = Adaptive({})
    assert (adaptive.mode, adaptive.accl3_type.name) == (AdaptiveMode.RMSProp, "UNDEFINED")


@pytest.mark.parametrize("kind", DEFAULTS)
def test_unknown_names_are_refused_with_those_that_are_known(kind):
    with pytest.raises(OptimizerSettingError, match="did you mean defaultLearningRate") as error:
        kind({"learningrate": (0.1, True)})
    assert "lossScaling" in str(error.value)
    assert isinstance(error.value, popart_exception)


@pytest.mark.parametrize("value", [0.1, [0.1, True], (0.1,), ("0.1", True), (0.1, 1), (True, True)])
def test_a_value_is_a_tuple_of_number_and_constness(value):
    with pytest.raises(OptimizerSettingError, match="constness"):
        SGD({"defaultLearningRate": value})


def test_numbers_of_numpy_are_taken():
    optimizer = SGD({"defaultLearningRate": (np.float32(0.5), np.bool_(0))})
    assert optimizer.learningRates().getDefault() == OptimizerValue(0.5, isConst=False)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (SGD, "defaultLearningRate", (-0.1, False)),
        (SGD, "defaultLearningRate", (0.0, True)),
        (SGD, "defaultLearningRate", (float("nan"), False)),
        (SGD, "defaultWeightDecay", (-0.1, True)),
        (SGD, "defaultMomentum", (-0.1, True)),
        (SGD, "defaultDampening", (-0.1, True)),
        (SGD, "defaultVelocityScaling", (0.0, True)),
        (SGD, "lossScaling", (0.0, False)),
        (SGD, "lossScaling", (float("inf"), False)),
        (Adam, "defaultLearningRate", (0.0, True)),
        (Adam, "defaultBeta1", (-0.5, True)),
        (Adam, "defaultBeta2", (-0.5, True)),
        (Adam, "defaultEps", (0.0, True)),
        (Adaptive, "defaultEps", (-1e-6, False)),
        (Adaptive, "defaultAlpha", (-1.0, False)),
    ],
)
def test_numbers_out_of_range_are_refused(kind, name, value):
    with pytest.raises(OptimizerValueError):
        kind({name: value})
    if kind is not SGD or name != "lossScaling":
        key = name.removeprefix("default")
        with pytest.raises(OptimizerValueError):
            kind({}).insertSpecific("w", {key[0].lower() + key[1:]: value})


def test_a_rate_of_zero_is_taken_where_it_may_change():
    assert SGD({"defaultLearningRate": (0.0, False)}).value("learningRate").val() == 0


def test_single_weights_take_plain_names_but_no_loss_scaling():
    optimizer = Adam({})
    optimizer.insertSpecific("w", {"learningRate": (0.5, False), "maxWeightNorm": (3.0, True)})
    assert optimizer.hasSpecific("w")
    assert not optimizer.hasSpecific("b")
    assert optimizer.learningRates().get("w") == OptimizerValue(0.5, isConst=False)
    assert optimizer.learningRates().get("b").val() == 0.1
    assert optimizer.beta1s().get("w").val() == 0.9
    assert not optimizer.beta1s().hasSpecific()
    with pytest.raises(OptimizerSettingError, match="no setting lossScaling"):
        optimizer.insertSpecific("w", {"lossScaling": (2.0, True)})
    with pytest.raises(OptimizerSettingError, match="did you mean learningRate"):
        optimizer.insertSpecific("w", {"defaultLearningRate": (2.0, True)})


def test_nesterov_needs_a_momentum_without_dampening():
    nesterov = {"nesterov": (True, True)}
    with pytest.raises(OptimizerValueError, match="Nesterov"):
        SGD(nesterov)
    with pytest.raises(OptimizerValueError, match="Nesterov"):
        SGD(nesterov | {"defaultMomentum": (0.9, True), "defaultDampening": (0.1, True)})
    optimizer = SGD(nesterov | {"defaultMomentum": (0.9, True)})
    assert optimizer.nesterov
    with pytest.raises(OptimizerValueError, match="Nesterov"):
        optimizer.insertSpecific("w", {"dampening": (0.1, True)})


@pytest.mark.parametrize(
    "make",
    [
        lambda: SGD({}, accumulatorAndMomentum="Combined"),
        lambda: SGD({}, accl1Type="INT32"),
        lambda: SGD({}, accumType="half"),
        lambda: Adam({}, mode=AdaptiveMode.AdaGrad),
        lambda: Adam({}, weight_decay_mode="L2"),
        lambda: Adaptive({}, mode=AdamMode.Adam),
        lambda: Adaptive({}, mode=AdaptiveMode.AdaGrad, rmsprop_tf_variant=True),
        lambda: Adam({}, clip_norm_settings=[1.0]),
        lambda: SGD(0.1),
    ],
)
def test_arguments_of_other_kinds_are_refused(make):
    with pytest.raises(OptimizerSettingError):
        make()


def test_const_sgd_is_sgd_of_constants():
    optimizer = ConstSGD(0.5, 0.1, 4.0)
    assert isinstance(optimizer, SGD)
    assert optimizer.getLossScalingVal() == 4.0
    assert optimizer.weightDecays().getDefault() == OptimizerValue(0.1, isConst=True)


def test_clipping_groups():
    some = ClipNormSettings.clipWeights(["w"], 2)
    assert (some.getWeightIds(), some.getMaxNorm()) == (["w"], 2.0)
    assert ClipNormSettings.clipAllWeights(1.0).getMode() is ClipNormMode.ClipAllWeights
    assert some == ClipNormSettings(["w"], 2.0)
    with pytest.raises(OptimizerValueError, match="positive"):
        ClipNormSettings.clipAllWeights(0.0)
    with pytest.raises(OptimizerSettingError, match="list of weight ids"):
        ClipNormSettings.clipWeights("w", 1.0)
    with pytest.raises(OptimizerSettingError, match="empty"):
        ClipNormSettings.clipWeights([], 1.0)
    with pytest.raises(OptimizerSettingError, match="more than one clipping group"):
        SGD({}, [some, ClipNormSettings.clipAllWeights(1.0)])


def test_the_scaling_of_states_follows_the_loss_scaling():
    make = lambda scale, **kw: Adam({"lossScaling": (scale, False)}, **kw)  # noqa: E731
    before, after = make(4.0), make(16.0)
    assert after.state_factors(before) == {}
    after = make(16.0, scaled_optimizer_state=True)
    assert after.state_factors(before) == {"Accl1___": 4.0, "Accl2___": 16.0}
    after = make(16.0, scaled_optimizer_state=True, mode=AdamMode.AdaMax)
    assert after.state_factors(before) == {"Accl1___": 4.0, "Accl2___": 4.0}


def test_what_instances_compare_does_not_depend_on_the_order_of_insertion():
    made = []
    for order in (["w", "v"], ["v", "w"]):
        clip = ClipNormSettings.clipWeights(dict.fromkeys(order).keys(), 1.0)
        optimizer = SGD({"defaultLearningRate": (0.1, False)}, clip_norm_settings=[clip])
        for name in order:
            optimizer.insertSpecific(name, {"weightDecay": (0.0, True), "momentum": (0.5, True)})
        made.append(repr(optimizer))
    assert made[0] == made[1]
