"""Fifty updates by every optimizer on real ONNX Runtime, against torch, in float64."""

import numpy as np
import pytest
import torch

from popdist_onnx.optimizers.adam import Adam
from popdist_onnx.optimizers.adaptive import Adaptive
from popdist_onnx.optimizers.sgd import SGD, ConstSGD
from popdist_onnx.optimizers.values import ClipNormSettings
from popdist_onnx.transforms.optimizer import grow_updates
from popdist_onnx.types.enums import (
    AdamMode,
    AdaptiveMode,
    SGDAccumulatorAndMomentum,
    WeightDecayMode,
)
from tests.popdist_onnx.optimizers import references
from tests.popdist_onnx.optimizers.graphs import Loop, gradient_graph

STEPS = 50
SHAPES = {"w": (3, 4), "b": (4,), "scale": ()}
COMBINED, SEPARATE = SGDAccumulatorAndMomentum.Combined, SGDAccumulatorAndMomentum.Separate
L2 = WeightDecayMode.L2Regularization


def values(*, const, **settings):
    return {name: (value, const) for name, value in settings.items()}


def start(seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape) for name, shape in SHAPES.items()}


def gradients(step, seed=1):
    rng = np.random.default_rng((seed, step))
    return {name: rng.normal(size=shape) * 0.3 for name, shape in SHAPES.items()}


def tensors(arrays):
    return {name: torch.tensor(array, dtype=torch.float64) for name, array in arrays.items()}


def trained(optimizer, **options):
    loop = Loop(grow_updates(gradient_graph(start()), optimizer, **options), optimizer)
    for step in range(STEPS):
        loop.step(**{f"grad_{name}": g for name, g in gradients(step).items()})
    return loop


def by_reference(reference, change=lambda g: g):
    for step in range(STEPS):
        reference.step(change(tensors(gradients(step))))
    return reference.weights


def by_torch(make):
    weights = {name: torch.nn.Parameter(w) for name, w in tensors(start()).items()}
    optimizer = make(list(weights.values()))
    for step in range(STEPS):
        for name, gradient in tensors(gradients(step)).items():
            weights[name].grad = gradient
        optimizer.step()
    return {name: w.detach() for name, w in weights.items()}


def assert_equal(loop, expected):
    for name, weight in expected.items():
        np.testing.assert_allclose(loop[name], weight.numpy(), rtol=1e-9, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("const", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_sgd(const, decay):
    optimizer = SGD(values(const=const, defaultLearningRate=0.05, defaultWeightDecay=decay))
    assert_equal(
        trained(optimizer), by_torch(lambda p: torch.optim.SGD(p, 0.05, weight_decay=decay))
    )


@pytest.mark.parametrize("kept", [COMBINED, SEPARATE])
@pytest.mark.parametrize("const", [True, False])
@pytest.mark.parametrize(
    ("decay", "nesterov"), [(0.0, False), (0.1, False), (0.1, True), (0.0, True)]
)
def test_sgd_with_momentum(kept, const, decay, nesterov):
    optimizer = SGD(
        values(const=const, defaultLearningRate=0.05, defaultWeightDecay=decay, defaultMomentum=0.9)
        | {"nesterov": (nesterov, True)},
        accumulatorAndMomentum=kept,
    )
    expected = by_torch(
        lambda p: torch.optim.SGD(p, 0.05, 0.9, weight_decay=decay, nesterov=nesterov)
    )
    assert_equal(trained(optimizer), expected)


@pytest.mark.parametrize("kept", [COMBINED, SEPARATE])
def test_sgd_with_dampening_velocity_and_loss_scaling(kept):
    optimizer = SGD(
        values(
            const=False,
            defaultLearningRate=0.05,
            defaultWeightDecay=0.1,
            defaultMomentum=0.8,
            defaultDampening=0.3,
            defaultVelocityScaling=4.0,
            lossScaling=128.0,
        ),
        accumulatorAndMomentum=kept,
    )
    expected = by_reference(references.Sgd(tensors(start()), 0.05, mm=0.8, dp=0.3, wd=0.1))
    assert_equal(trained(optimizer), expected)


def test_sgd_with_dampening_but_no_momentum():
    optimizer = SGD(
        values(const=True, defaultLearningRate=0.05, defaultWeightDecay=0.1, defaultDampening=0.25)
    )
    expected = by_reference(references.Sgd(tensors(start()), 0.05, dp=0.25, wd=0.1))
    assert_equal(trained(optimizer), expected)


def test_const_sgd():
    optimizer = ConstSGD(0.05, weight_decay=0.1, loss_scaling=16)
    assert_equal(trained(optimizer), by_torch(lambda p: torch.optim.SGD(p, 0.05, weight_decay=0.1)))


ADAM = {"defaultLearningRate": 0.02, "defaultBeta1": 0.85, "defaultBeta2": 0.97, "defaultEps": 1e-5}


@pytest.mark.parametrize("const", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("mode", [WeightDecayMode.Decay, L2])
def test_adam_and_adamw(const, decay, mode):
    optimizer = Adam(
        values(const=const, **ADAM, defaultWeightDecay=decay, lossScaling=64.0),
        weight_decay_mode=mode,
    )
    kind = torch.optim.Adam if mode is L2 else torch.optim.AdamW
    expected = by_torch(lambda p: kind(p, 0.02, (0.85, 0.97), 1e-5, weight_decay=decay))
    assert_equal(trained(optimizer), expected)


FAMILY = {
    AdamMode.Adam: (references.Adam, {}),
    AdamMode.AdamNoBias: (references.Adam, {"bias": False}),
    AdamMode.AdaMax: (references.AdaMax, {}),
    AdamMode.Lamb: (references.Lamb, {"limit": 1.5}),
    AdamMode.LambNoBias: (references.Lamb, {"limit": 1.5, "bias": False}),
}


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("const", [True, False])
@pytest.mark.parametrize("decay_mode", [WeightDecayMode.Decay, L2])
@pytest.mark.parametrize("mode", FAMILY)
def test_the_adam_family(mode, decay_mode, const, scaled):
    optimizer = Adam(
        values(const=const, **ADAM, defaultWeightDecay=0.1, lossScaling=32.0, maxWeightNorm=1.5),
        mode=mode,
        weight_decay_mode=decay_mode,
        scaled_optimizer_state=scaled,
    )
    kind, extra = FAMILY[mode]
    reference = kind(tensors(start()), 0.02, 0.85, 0.97, 1e-5, 0.1, decay_mode is L2, **extra)
    loop = trained(optimizer)
    assert_equal(loop, by_reference(reference))
    scale = 32.0 if scaled else 1.0
    second = scale if mode is AdamMode.AdaMax else scale**2
    for name, state in reference.state.items():
        np.testing.assert_allclose(loop[f"Accl1___{name}"], scale * state["m"], rtol=1e-9)
        np.testing.assert_allclose(loop[f"Accl2___{name}"], second * state["v"], rtol=1e-9)


def test_lamb_takes_the_step_as_it_is_where_a_norm_is_zero():
    optimizer = Adam(values(const=True, defaultLearningRate=0.5), mode=AdamMode.Lamb)
    weights = {"zero": np.zeros(3), "still": np.ones(3)}
    loop = Loop(grow_updates(gradient_graph(weights), optimizer), optimizer)
    loop.step(grad_zero=np.ones(3), grad_still=np.zeros(3))
    np.testing.assert_allclose(loop["zero"], -0.5, rtol=1e-5)
    np.testing.assert_array_equal(loop["still"], 1.0)


def test_torch_agrees_with_adamax_but_for_the_place_of_eps():
    optimizer = Adam(
        values(const=True, defaultLearningRate=0.02, defaultEps=1e-30), AdamMode.AdaMax
    )
    assert_equal(trained(optimizer), by_torch(lambda p: torch.optim.Adamax(p, 0.02, eps=1e-30)))


@pytest.mark.parametrize("const", [True, False])
@pytest.mark.parametrize("decay_mode", [WeightDecayMode.Decay, L2])
@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize(
    ("mode", "tf"),
    [
        *((m, False) for m in AdaptiveMode),
        *((m, True) for m in (AdaptiveMode.RMSProp, AdaptiveMode.CenteredRMSProp)),
    ],
)
def test_the_adaptive_family(mode, tf, momentum, decay_mode, const):
    optimizer = Adaptive(
        values(
            const=const,
            defaultLearningRate=0.02,
            defaultAlpha=0.9,
            defaultEps=1e-5,
            defaultWeightDecay=0.1,
            defaultMomentum=momentum,
            lossScaling=16.0,
        ),
        mode=mode,
        weight_decay_mode=decay_mode,
        rmsprop_tf_variant=tf,
    )
    # A momentum that may change counts as one even while it is 0.
    kept = momentum if momentum or not const else None
    reference = references.Adaptive(
        tensors(start()), mode.name, 0.02, 0.9, kept, 1e-5, 0.1, decay_mode is L2, tf
    )
    assert_equal(trained(optimizer), by_reference(reference))


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        (AdaptiveMode.AdaGrad, lambda p: torch.optim.Adagrad(p, 0.02, weight_decay=0.1, eps=1e-5)),
        (AdaptiveMode.RMSProp, lambda p: torch.optim.RMSprop(p, 0.02, 0.9, 1e-5, 0.1, 0.7)),
        (
            AdaptiveMode.CenteredRMSProp,
            lambda p: torch.optim.RMSprop(p, 0.02, 0.9, 1e-5, 0.1, 0.7, centered=True),
        ),
        (AdaptiveMode.AdaDelta, lambda p: torch.optim.Adadelta(p, 0.02, 0.9, 1e-5, 0.1)),
    ],
)
def test_torch_agrees_with_the_adaptive_family(mode, kind):
    momentum = 0.7 if mode in {AdaptiveMode.RMSProp, AdaptiveMode.CenteredRMSProp} else 0.0
    optimizer = Adaptive(
        values(
            const=True,
            defaultLearningRate=0.02,
            defaultAlpha=0.9,
            defaultEps=1e-5,
            defaultWeightDecay=0.1,
            defaultMomentum=momentum,
        ),
        mode=mode,
        weight_decay_mode=L2,
    )
    assert_equal(trained(optimizer), by_torch(kind))


@pytest.mark.parametrize(
    "make",
    [
        lambda clips: SGD(values(const=False, defaultLearningRate=0.05, lossScaling=8.0), clips),
        lambda clips: SGD(values(const=True, defaultLearningRate=0.05, defaultMomentum=0.9), clips),
        lambda clips: Adam(values(const=True, **ADAM, lossScaling=8.0), clip_norm_settings=clips),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_clipping_acts_on_the_gradient_without_loss_scaling(make, together):
    limit = 0.4
    clips = (
        [ClipNormSettings.clipAllWeights(limit)]
        if together
        else [ClipNormSettings.clipWeights(["w", "scale"], limit)]
    )

    def clip(given):
        chosen = given if together else {k: given[k] for k in ("w", "scale")}
        return given | references.clipped(chosen, limit)

    optimizer = make(clips)
    reference = (
        references.Adam(tensors(start()), 0.02, 0.85, 0.97, 1e-5)
        if isinstance(optimizer, Adam)
        else references.Sgd(tensors(start()), 0.05, mm=optimizer.value("momentum").val())
    )
    assert_equal(trained(optimizer), by_reference(reference, clip))


def test_a_weight_has_settings_of_its_own():
    optimizer = SGD(values(const=False, defaultLearningRate=0.05, defaultMomentum=0.9))
    optimizer.insertSpecific("b", {"learningRate": (0.2, True), "momentum": (0.0, True)})
    loop = trained(optimizer)
    expected = by_reference(references.Sgd(tensors(start()), 0.05, mm=0.9))
    own = by_reference(references.Sgd(tensors(start()), 0.2))
    assert_equal(loop, expected | {"b": own["b"]})
    assert "Accl___w" in loop.states
    assert "Accl___b" not in loop.states


def test_non_constant_numbers_change_between_updates():
    rates = (0.1, 0.02, 0.5)

    def make(rate):
        return SGD(values(const=False, defaultLearningRate=rate))

    loop = Loop(grow_updates(gradient_graph(start()), make(rates[0])), make(rates[0]))
    expected = tensors(start())
    for step, rate in enumerate(rates):
        loop.set_optimizer(make(rate))
        fed = gradients(step)
        loop.step(**{f"grad_{name}": g for name, g in fed.items()})
        expected = {name: w - rate * torch.tensor(fed[name]) for name, w in expected.items()}
    assert_equal(loop, expected)
