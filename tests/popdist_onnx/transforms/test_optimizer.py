"""Growing updates: names, states, numbers, and what is refused."""

import numpy as np
import onnx
import pytest

from popdist_onnx.graph import names
from popdist_onnx.graph.load import load, save
from popdist_onnx.optimizers.adam import Adam
from popdist_onnx.optimizers.adaptive import Adaptive
from popdist_onnx.optimizers.sgd import SGD
from popdist_onnx.optimizers.values import ClipNormSettings, OptimizerSettingError, UpdateError
from popdist_onnx.transforms.optimizer import grow_updates, scalar_inputs
from popdist_onnx.types.enums import (
    AdamMode,
    AdaptiveMode,
    ReductionType,
    SGDAccumulatorAndMomentum,
)
from tests.popdist_onnx.optimizers.graphs import Loop, gradient_graph

WEIGHTS = {"w": np.full((2, 3), 2.0, np.float32), "b": np.ones(3, np.float32)}
SEPARATE = SGDAccumulatorAndMomentum.Separate
MOMENTUM = {"defaultMomentum": (0.9, True), "defaultWeightDecay": (0.5, True)}


def states(optimizer):
    model = grow_updates(gradient_graph(WEIGHTS), optimizer)
    return {
        name: np.asarray(value.const_value.numpy())
        for name, value in model.graph.initializers.items()
        if name not in WEIGHTS
    }


@pytest.mark.parametrize(
    ("optimizer", "prefixes"),
    [
        (SGD({}), []),
        (SGD(MOMENTUM), ["Accl___"]),
        (SGD(MOMENTUM, accumulatorAndMomentum=SEPARATE), ["Accl1___"]),
        (Adam({}), ["Accl1___", "Accl2___", "Step___"]),
        (Adam({}, AdamMode.AdaMax), ["Accl1___", "Accl2___", "Step___"]),
        (Adam({}, AdamMode.Lamb), ["Accl1___", "Accl2___", "Step___"]),
        (Adam({}, AdamMode.AdamNoBias), ["Accl1___", "Accl2___"]),
        (Adam({}, AdamMode.LambNoBias), ["Accl1___", "Accl2___"]),
        (Adaptive({}), ["Accl1___"]),
        (Adaptive({}, AdaptiveMode.AdaGrad), ["Accl1___"]),
        (Adaptive({}, AdaptiveMode.CenteredRMSProp), ["Accl1___", "Accl2___"]),
        (Adaptive({}, AdaptiveMode.AdaDelta), ["Accl1___", "Accl2___"]),
        (Adaptive({"defaultMomentum": (0.9, True)}), ["Accl1___", "Accl3___"]),
    ],
    ids=repr,
)
def test_states_have_the_published_names(optimizer, prefixes):
    found = states(optimizer)
    assert sorted(found) == sorted(prefix + weight for prefix in prefixes for weight in WEIGHTS)
    for name, content in found.items():
        if name.startswith("Step___"):
            assert (content.shape, content.dtype, float(content)) == ((), np.float32, 0.0)
        elif name not in {"Accl___w", "Accl___b"}:
            np.testing.assert_array_equal(content, 0.0)


def test_combined_velocity_starts_with_the_weight_decay():
    np.testing.assert_array_equal(states(SGD(MOMENTUM))["Accl___w"], 0.5 * WEIGHTS["w"])


def test_the_tensorflow_variant_starts_at_one():
    found = states(Adaptive({}, AdaptiveMode.CenteredRMSProp, rmsprop_tf_variant=True))
    np.testing.assert_array_equal(found["Accl1___w"], 1.0)
    np.testing.assert_array_equal(found["Accl2___w"], 0.0)


OPTIMIZERS = [
    SGD(MOMENTUM),
    SGD(MOMENTUM, accumulatorAndMomentum=SEPARATE),
    Adam({}),
    Adam({}, AdamMode.Lamb),
    Adaptive({"defaultMomentum": (0.9, True)}, AdaptiveMode.CenteredRMSProp),
]


def fed(step):
    rng = np.random.default_rng(step)
    return {
        f"grad_{name}": rng.normal(size=value.shape).astype(np.float32)
        for name, value in WEIGHTS.items()
    }


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_training_continues_bit_by_bit_from_a_saved_model(optimizer):
    straight = Loop(grow_updates(gradient_graph(WEIGHTS), optimizer), optimizer)
    for step in range(4):
        straight.step(**fed(step))

    first = Loop(grow_updates(gradient_graph(WEIGHTS), optimizer), optimizer)
    for step in range(2):
        first.step(**fed(step))
    weights = {name: first[name] for name in WEIGHTS}
    rest = {name: value for name, value in first.states.items() if name not in WEIGHTS}
    saved = save(gradient_graph(weights, rest)).SerializeToString()
    model = load(saved)
    second = Loop(grow_updates(model, optimizer), optimizer)
    for step in (2, 3):
        second.step(**fed(step))
    assert second.states.keys() == straight.states.keys()
    for name, value in straight.states.items():
        np.testing.assert_array_equal(second[name], value, err_msg=name)


def test_weights_restored_at_other_steps_are_corrected_by_their_own():
    optimizer = Adam({"defaultLearningRate": (0.1, True)})
    steps = {"Step___w": np.float32(7), "Step___b": np.float32(0)}
    loop = Loop(
        grow_updates(
            gradient_graph(WEIGHTS, {k: np.asarray(v) for k, v in steps.items()}), optimizer
        ),
        optimizer,
    )
    ones = {f"grad_{name}": np.ones_like(value) for name, value in WEIGHTS.items()}
    loop.step(**ones)
    # The moments start at zero, so only the correction tells the counts apart.
    first = 0.1 / (1 - 0.9**8) / (np.sqrt(0.001 / (1 - 0.999**8)))
    np.testing.assert_allclose(loop["w"], 2.0 - 0.1 * first, rtol=1e-5)
    np.testing.assert_allclose(loop["b"], 1.0 - 0.1, rtol=1e-5)
    assert (loop["Step___w"], loop["Step___b"]) == (8.0, 1.0)


@pytest.mark.parametrize("found", [np.zeros(4, np.float32), np.zeros((2, 3), np.float16)])
def test_a_state_that_does_not_fit_is_refused(found):
    with pytest.raises(UpdateError, match="Accl1___w does not fit the optimizer"):
        grow_updates(gradient_graph(WEIGHTS, {"Accl1___w": found}), Adam({}))


def inputs(optimizer, weights=WEIGHTS):
    model = grow_updates(gradient_graph(weights), optimizer)
    feeds = scalar_inputs(model, optimizer)
    rest = {v.name for v in model.graph.inputs} - feeds.keys()
    assert rest == {f"grad_{name}" for name in weights}
    return {name: float(value) for name, value in feeds.items()}


def test_constant_numbers_are_no_inputs():
    assert inputs(SGD(MOMENTUM | {"lossScaling": (4.0, True)})) == {}


def test_constant_numbers_have_their_published_names_too():
    model = grow_updates(gradient_graph(WEIGHTS), SGD({"defaultLearningRate": (0.5, True)}))
    (constant,) = (
        node
        for node in model.graph
        if node.outputs[0].name == "scaledLearningRate0___default___FLOAT"
    )
    assert constant.attributes["value"].value.numpy() == 0.5


def test_other_numbers_are_inputs_of_the_published_names():
    optimizer = SGD({"defaultLearningRate": (0.5, False), "defaultDampening": (0.5, True)})
    assert inputs(optimizer) == {"scaledLearningRate0___default___FLOAT": 0.25}
    optimizer = SGD({"defaultLearningRate": (0.5, False), "defaultWeightDecay": (0.1, True)})
    assert inputs(optimizer) == pytest.approx(
        {
            "scaledLearningRate0___default___FLOAT": 0.5,
            "weightDecayScaleFactor0___default___FLOAT": 0.95,
        }
    )


@pytest.mark.parametrize(("kept", "kind"), [(SGDAccumulatorAndMomentum.Combined, 1), (SEPARATE, 2)])
def test_numbers_of_momentum_have_the_published_names(kept, kind):
    settings = {
        "defaultLearningRate": (0.5, False),
        "defaultMomentum": (0.9, False),
        "defaultDampening": (0.2, False),
        "defaultWeightDecay": (0.1, False),
        "defaultVelocityScaling": (2.0, False),
        "lossScaling": (4.0, False),
    }
    assert inputs(SGD(settings, accumulatorAndMomentum=kept)) == pytest.approx(
        {
            f"scaledLearningRate{kind}___default___FLOAT": 0.25,
            f"scaledMomentum{kind}___default___FLOAT": 0.9,
            f"dampeningScaleFactor{kind}___default___FLOAT": 0.4,
            "scaledWeightDecay1___default___FLOAT": 0.16,
            "lossScaling_FLOAT": 4.0,
        }
    )


def test_a_weight_of_its_own_has_inputs_of_its_own():
    optimizer = Adam({"defaultLearningRate": (0.5, True)})
    optimizer.insertSpecific("b", {"learningRate": (0.25, False)})
    assert inputs(optimizer) == {"learningRate___specific___b": 0.25}


def test_the_type_of_a_number_is_that_of_the_update():
    weights = {"w": np.ones(2), "h": np.ones(2, np.float16)}
    assert inputs(SGD({"defaultLearningRate": (0.5, False)}), weights) == {
        "scaledLearningRate0___default___DOUBLE": 0.5,
        "scaledLearningRate0___default___FLOAT": 0.5,
    }


def test_a_constant_loss_scaling_is_the_seed_itself():
    model = grow_updates(gradient_graph(WEIGHTS), SGD({"lossScaling": (8.0, True)}))
    seed = next(n for n in model.graph if n.metadata_props.get(names.ROLE) == names.LOSS_SEED)
    assert seed.attributes["value"].value.numpy() == 8.0


def test_the_loss_cannot_be_scaled_without_its_seed():
    model = gradient_graph(WEIGHTS)
    for node in model.graph:
        node.metadata_props.pop(names.ROLE, None)
    with pytest.raises(UpdateError, match="the loss cannot be scaled"):
        grow_updates(model, SGD({"lossScaling": (8.0, True)}))


def test_updates_grow_once():
    model = grow_updates(gradient_graph(WEIGHTS), SGD({}))
    with pytest.raises(UpdateError, match="updated already"):
        grow_updates(model, SGD({}))


def test_weights_that_do_not_exist_are_refused():
    optimizer = SGD({})
    optimizer.insertSpecific("ww", {"learningRate": (0.5, True)})
    with pytest.raises(
        UpdateError, match=r"has settings for a weight.*\n.*'ww'.*\n.*\n.*did you mean w"
    ):
        grow_updates(gradient_graph(WEIGHTS), optimizer)
    clip = SGD({}, [ClipNormSettings.clipWeights(["bias"], 1.0)])
    with pytest.raises(UpdateError, match="has clipping for a weight"):
        grow_updates(gradient_graph(WEIGHTS), clip)


@pytest.mark.parametrize(
    ("optimizer", "shared", "each"),
    [
        (SGD({}), 0, 2),
        (SGD({"defaultLearningRate": (0.5, False)}), 0, 2),
        (SGD({"defaultWeightDecay": (0.1, True)}), 0, 3),
        (SGD({"defaultMomentum": (0.9, True)}, accumulatorAndMomentum=SEPARATE), 0, 4),
        (SGD({"defaultMomentum": (0.9, True)}), 0, 4),
        (Adam({}), 11, 13),
        (Adam({"defaultLearningRate": (0.5, False)}), 11, 13),
        (Adam({}, AdamMode.AdamNoBias), 0, 12),
        (Adam({}, clip_norm_settings=[ClipNormSettings.clipAllWeights(1.0)]), 18, 14),
    ],
    ids=repr,
)
def test_updates_are_lean(optimizer, shared, each):
    model = grow_updates(gradient_graph(WEIGHTS), optimizer)
    onnx.checker.check_model(save(model))
    nodes = [
        node
        for node in model.graph
        if node.metadata_props.get(names.PHASE) == "update" and node.op_type != "Constant"
    ]
    assert len(nodes) == shared + each * len(WEIGHTS)


HALVES = [
    SGD({"lossScaling": (4.0, False)}),
    *OPTIMIZERS,
    Adam({}, accl1_type="FLOAT16", accl2_type="BFLOAT16"),
    Adam({}, AdamMode.AdaMax, clip_norm_settings=[ClipNormSettings.clipAllWeights(0.5)]),
    *(Adaptive({}, mode) for mode in AdaptiveMode),
]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("optimizer", HALVES, ids=repr)
def test_half_precision_follows_float32(optimizer, dtype):
    import ml_dtypes

    half = np.dtype(np.float16 if dtype == "float16" else ml_dtypes.bfloat16)
    narrow = {name: value.astype(half) for name, value in WEIGHTS.items()}
    ours = Loop(grow_updates(gradient_graph(narrow), optimizer), optimizer)
    wide = Loop(grow_updates(gradient_graph(WEIGHTS), optimizer), optimizer)
    for step in range(3):
        gradients = {name: value.astype(half) for name, value in fed(step).items()}
        ours.step(**gradients)
        wide.step(**{name: value.astype(np.float32) for name, value in gradients.items()})
    for name in WEIGHTS:
        assert ours[name].dtype == half
        error = 2e-3 if dtype == "float16" else 2e-2
        np.testing.assert_allclose(ours[name].astype(np.float32), wide[name], error, error)


def test_a_mean_divides_what_updates_read():
    settings = {"defaultLearningRate": (0.5, False), "lossScaling": (2.0, True)}
    model = grow_updates(
        gradient_graph(WEIGHTS), SGD(settings), ReductionType.Mean, accumulation=5, replicas=2
    )
    (rate,) = scalar_inputs(model, SGD(settings)).values()
    assert rate == pytest.approx(0.5 / (2 * 5))


@pytest.mark.parametrize("given", [None, "SGD", SGD])
def test_something_else_is_no_optimizer(given):
    with pytest.raises(OptimizerSettingError, match="not an optimizer of the ONNX adapter"):
        grow_updates(gradient_graph(WEIGHTS), given)
    with pytest.raises(OptimizerSettingError, match="not an optimizer of the ONNX adapter"):
        SGD({}).validReplacement(given)
