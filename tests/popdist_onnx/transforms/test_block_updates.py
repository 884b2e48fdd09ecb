"""Updates of large weights run block by block, with the same results bit by bit."""

import numpy as np
import onnx
import pytest

from popdist_onnx.graph.load import save
from popdist_onnx.optimizers.adam import Adam
from popdist_onnx.optimizers.adaptive import Adaptive
from popdist_onnx.optimizers.sgd import SGD
from popdist_onnx.optimizers.values import ClipNormSettings
from popdist_onnx.transforms.accumulate import accumulate
from popdist_onnx.transforms.block_updates import block_updates
from popdist_onnx.transforms.host_allreduce import insert_host_allreduce
from popdist_onnx.transforms.optimizer import grow_updates
from popdist_onnx.types.enums import AdamMode, AdaptiveMode, SGDAccumulatorAndMomentum
from tests.popdist_onnx.optimizers.graphs import Loop, gradient_graph

RNG = np.random.default_rng(0)
WEIGHTS = {
    "large": RNG.normal(size=(256, 3, 256)).astype(np.float32),
    "small": RNG.normal(size=(16, 16)).astype(np.float32),
}
DECAY = {"defaultWeightDecay": (0.1, True), "defaultLearningRate": (0.01, False)}
MOMENTUM = DECAY | {"defaultMomentum": (0.9, False)}
OPTIMIZERS = [
    Adam(DECAY),
    Adam(DECAY, AdamMode.AdaMax, clip_norm_settings=[ClipNormSettings.clipAllWeights(0.1)]),
    Adam(DECAY, AdamMode.AdamNoBias, accl1_type="FLOAT16"),
    SGD({}),
    SGD(MOMENTUM),
    SGD(MOMENTUM, accumulatorAndMomentum=SGDAccumulatorAndMomentum.Separate),
    *(Adaptive(MOMENTUM, mode) for mode in AdaptiveMode),
]


def kinds(model):
    return [node.op_type for node in model.graph]


def fed(step):
    rng = np.random.default_rng(step)
    return {
        f"grad_{name}": rng.normal(size=value.shape).astype(value.dtype)
        for name, value in WEIGHTS.items()
    }


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_results_are_the_same_bit_by_bit(optimizer):
    plain = Loop(grow_updates(gradient_graph(WEIGHTS), optimizer), optimizer)
    model = block_updates(grow_updates(gradient_graph(WEIGHTS), optimizer))
    onnx.checker.check_model(save(model))
    assert kinds(model).count("Scan") == 1
    blocked = Loop(model, optimizer)
    for step in range(3):
        plain.step(**fed(step))
        blocked.step(**fed(step))
    for name, value in plain.states.items():
        np.testing.assert_array_equal(blocked[name], value, err_msg=name)


def test_what_is_written_has_the_blocks_as_rows():
    model = block_updates(grow_updates(gradient_graph(WEIGHTS), Adam({})))
    shapes = {value.name: list(value.shape) for value in model.graph.outputs}
    assert shapes["UpdatedVar___large"] == shapes["UpdatedVar___Accl1___large"] == [6, 32768]
    assert shapes["UpdatedVar___small"] == [16, 16]


def test_blocks_are_longer_where_little_is_calculated_on_the_way():
    model = block_updates(grow_updates(gradient_graph(WEIGHTS), SGD({})))
    shapes = {value.name: list(value.shape) for value in model.graph.outputs}
    assert shapes["UpdatedVar___large"] == [2, 98304]


def test_an_exchange_and_sums_go_with_it():
    model = accumulate(gradient_graph(WEIGHTS), 2)
    block_updates(insert_host_allreduce(grow_updates(model, Adam({}))))
    onnx.checker.check_model(save(model))
    scan = next(node for node in model.graph if node.op_type == "Scan")
    read = {value.producer().inputs[0].name for value in scan.inputs}
    assert read == {
        "large",
        "Accl1___large",
        "Accl2___large",
        "HostReduceOut__FinalReducedGradient___large",
    }


@pytest.mark.parametrize(
    ("weights", "optimizer", "keep"),
    [
        (WEIGHTS, Adam({}, AdamMode.Lamb), ()),
        (WEIGHTS, Adam({}), ["UpdatedVar___Accl2___large"]),
        ({"small": WEIGHTS["small"]}, Adam({}), ()),
        ({"prime": np.zeros(262147, np.float32)}, Adam({}), ()),
    ],
    ids=["whole tensor", "kept", "small", "not divisible"],
)
def test_what_cannot_be_divided_stays(weights, optimizer, keep):
    model = grow_updates(gradient_graph(weights), optimizer)
    before = kinds(model)
    block_updates(model, keep)
    assert kinds(model) == before
