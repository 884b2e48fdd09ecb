"""Every optimizer on two real ranks with different data, against plain torch on all of it."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import popdist
import popdist.popart
import popdist_onnx as popart
from popdist_onnx.types.enums import (
    AdamMode,
    AdaptiveMode,
    SGDAccumulatorAndMomentum,
    WeightDecayMode,
)
from tests.distributed.jobs import run_job
from tests.popdist_onnx.optimizers import references

UPDATES, SAMPLES, WIDTH = 5, 4, 3
INSTANCES = 2
L2 = WeightDecayMode.L2Regularization
LIMIT = 0.2


def settings(**values):
    return {name: (value, False) for name, value in values.items()}


RATE = settings(defaultLearningRate=0.05, defaultWeightDecay=0.1, lossScaling=16.0)
MOMENTUM = RATE | settings(defaultMomentum=0.9)
CLIP = [popart.ClipNormSettings.clipWeights(["w", "b"], LIMIT)]
ADAM = (0.05, 0.9, 0.999, 1e-6, 0.1)


def adam(mode, kind, **extra):
    return (
        lambda: popart.Adam(RATE, mode=mode, clip_norm_settings=CLIP),
        lambda weights: kind(weights, *ADAM, **extra),
    )


def adaptive(mode, tf=False):
    return (
        lambda: popart.Adaptive(MOMENTUM, mode=mode, rmsprop_tf_variant=tf),
        lambda weights: references.Adaptive(weights, mode.name, 0.05, m=0.9, wd=0.1, tf=tf),
    )


def sgd(mm, kept=SGDAccumulatorAndMomentum.Combined, nesterov=False):
    values = (MOMENTUM if mm else RATE) | {"nesterov": (nesterov, True)}
    return (
        lambda: popart.SGD(values, CLIP, accumulatorAndMomentum=kept),
        lambda weights: references.Sgd(weights, 0.05, mm, wd=0.1, nesterov=nesterov),
    )


OPTIMIZERS = {
    "sgd": sgd(0.0),
    "combined": sgd(0.9),
    "separate": sgd(0.9, SGDAccumulatorAndMomentum.Separate),
    "nesterov": sgd(0.9, nesterov=True),
    "adam": adam(AdamMode.Adam, references.Adam),
    "adam without bias correction": adam(AdamMode.AdamNoBias, references.Adam, bias=False),
    "adamax": adam(AdamMode.AdaMax, references.AdaMax),
    "lamb": adam(AdamMode.Lamb, references.Lamb),
    "lamb without bias correction": adam(AdamMode.LambNoBias, references.Lamb, bias=False),
    "scaled state": (
        lambda: popart.Adam(RATE, weight_decay_mode=L2, scaled_optimizer_state=True),
        lambda weights: references.Adam(weights, *ADAM, l2=True),
    ),
    **{mode.name: adaptive(mode) for mode in AdaptiveMode},
    "tensorflow's rmsprop": adaptive(AdaptiveMode.RMSProp, tf=True),
}


def weights():
    rng = np.random.default_rng(1)
    return {"w": rng.normal(size=(WIDTH, 2)), "b": rng.normal(size=2), "v": rng.normal(size=(2, 2))}


def data():
    """Different numbers for every update, instance and sample."""
    return np.random.default_rng(2).normal(size=(UPDATES, INSTANCES, SAMPLES, WIDTH))


def model():
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("MatMul", ["t", "v"], ["y"]),
        helper.make_node("Mul", ["y", "y"], ["squares"]),
        helper.make_node("ReduceMean", ["squares"], ["loss"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "two layers",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [SAMPLES, WIDTH])],
        [helper.make_tensor_value_info("loss", TensorProto.DOUBLE, [])],
        [numpy_helper.from_array(value, name) for name, value in weights().items()],
    )
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def train_all():
    """Runs on every instance: trains with each optimizer on this instance's share of the data."""
    answer = {}
    mine = np.ascontiguousarray(data()[:, popdist.topology().instance_index])
    for name, (make, _) in OPTIMIZERS.items():
        options = popart.SessionOptions()
        popdist.popart.configureSessionOptions(options)
        anchors = {"loss": popart.AnchorReturnType("Final")}
        session = popart.TrainingSession(
            model(),
            popart.DataFlow(UPDATES, anchors),
            "loss",
            make(),
            popdist.popart.getDevice(),
            userOptions=options,
            name=name,
        )
        session.prepareDevice()
        session.weightsFromHost()
        session.run(popart.PyStepIO({"x": mine}, session.initAnchorArrays()))
        session.weightsToHost()
        found = {key: np.empty_like(array) for key, array in session.host_tensors.items()}
        session.readWeights(popart.PyWeightsIO(found))
        answer |= {f"{name}/{key}": value for key, value in found.items()}
    return answer


@pytest.fixture(scope="module")
def answers():
    return run_job(train_all, instances=INSTANCES)


def expected(name):
    """Plain torch in one process: gradients of both instances' losses, summed."""
    start = {key: torch.from_numpy(value) for key, value in weights().items()}
    reference = OPTIMIZERS[name][1](start)
    clips = OPTIMIZERS[name][0]().getClipNormSettings()
    norms = []
    for batches in torch.from_numpy(data()):
        leaves = {key: w.clone().requires_grad_() for key, w in reference.weights.items()}
        for x in batches:
            y = torch.tanh(x @ leaves["w"] + leaves["b"]) @ leaves["v"]
            (y**2).mean().backward()
        gradients = {key: leaf.grad for key, leaf in leaves.items()}
        if clips:
            group = {key: gradients[key] for key in clips[0].getWeightIds()}
            norms.append(sum(float((g**2).sum()) for g in group.values()) ** 0.5)
            gradients |= references.clipped(group, LIMIT)
        reference.step(gradients)
    # Else nothing would have been clipped.
    assert max(norms, default=LIMIT + 1) > LIMIT
    return reference.weights


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_and_states_are_equal_on_all_instances(answers, name):
    one, other = answers
    for key, value in one.items():
        if key.startswith(f"{name}/"):
            np.testing.assert_array_equal(other[key], value, err_msg=key)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_are_those_of_one_process_with_all_data(answers, name):
    for key, value in expected(name).items():
        found = answers[0][f"{name}/{key}"]
        np.testing.assert_allclose(found, value.numpy(), rtol=1e-10, atol=1e-12, err_msg=key)
