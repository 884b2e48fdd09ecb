"""Optimizer states in sessions: blocked updates in place, saved models, changed loss scaling."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import popdist_onnx as popart
from popdist_onnx.session import training

RNG = np.random.default_rng(0)
WEIGHTS = {
    "w": RNG.normal(size=(512, 512)).astype(np.float32) / 23,
    "v": RNG.normal(size=(512, 512)).astype(np.float32) / 23,
    "b": np.zeros(512, np.float32),
}
X = RNG.normal(size=(4, 512)).astype(np.float32)
DECAY = {"defaultWeightDecay": (0.1, True), "defaultLearningRate": (0.01, False)}
MOMENTUM = DECAY | {"defaultMomentum": (0.9, False)}
OPTIMIZERS = [
    popart.Adam(DECAY),
    popart.Adam(DECAY, clip_norm_settings=[popart.ClipNormSettings.clipAllWeights(0.1)]),
    popart.SGD(MOMENTUM),
    popart.Adaptive(MOMENTUM, popart.AdaptiveMode.CenteredRMSProp),
]


def model(weights=WEIGHTS):
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
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 512])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def session(optimizer, source=None, **options):
    chosen = popart.SessionOptions()
    for name, value in options.items():
        setattr(chosen, name, value)
    made = popart.TrainingSession(
        fnModel=source or model(),
        dataFlow=popart.DataFlow(1, {"loss": popart.AnchorReturnType("Final")}),
        loss="loss",
        optimizer=optimizer,
        deviceInfo=popart.DeviceManager().createCpuDevice(),
        userOptions=chosen,
    )
    made.prepareDevice()
    made.weightsFromHost()
    return made


def steps(made, count, copies=1):
    for _ in range(count):
        made.run(popart.PyStepIO({"x": np.concatenate([X] * copies)}, made.initAnchorArrays()))
    state = made._engine.state
    return {name: state.read(name).copy() for name in state.names}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"enableGradientAccumulation": True, "accumulationFactor": 2},
        {"enableReplicatedGraphs": True, "replicatedGraphCount": 2},
    ],
    ids=["plain", "accumulation", "replicas"],
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_blocks_change_no_bit(optimizer, options, monkeypatch):
    copies = 2 if options else 1
    blocked = session(optimizer, **options)
    assert any(step.node.op_type == "Scan" for step in blocked._reading.steps)
    monkeypatch.setattr(training, "block_updates", lambda graph, **_: graph)
    plain = session(optimizer, **options)
    assert not any(step.node.op_type == "Scan" for step in plain._reading.steps)
    expected = steps(plain, 3, copies)
    for name, value in steps(blocked, 3, copies).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_blocked_states_live_in_one_buffer():
    made = session(popart.Adam(DECAY))
    alone = {
        name
        for name in made._engine.state.names
        if len(made._engine.state.cell(name, 0).buffers) == 1
    }
    # v is read by the product that carries the gradient on, which may run after its update.
    assert {"w", "b", "Accl1___w", "Accl2___w", "Accl1___v", "Accl2___v"} <= alone


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_a_saved_model_continues_bit_by_bit(optimizer, tmp_path):
    expected = steps(session(optimizer), 4)
    first = session(optimizer)
    steps(first, 2)
    first.modelToHost(str(tmp_path / "half.onnx"))
    shapes = {i.name: tuple(i.dims) for i in onnx.load(tmp_path / "half.onnx").graph.initializer}
    for name, shape in shapes.items():
        if name.endswith("___w") and not name.startswith("Step"):
            assert shape == (512, 512), name
    second = session(optimizer, str(tmp_path / "half.onnx"))
    for name, value in steps(second, 2).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


@pytest.mark.parametrize("mode", [popart.AdamMode.Adam, popart.AdamMode.AdaMax])
def test_scaled_states_follow_a_new_loss_scaling(mode):
    def optimizer(scale):
        return popart.Adam({"lossScaling": (scale, False)}, mode=mode, scaled_optimizer_state=True)

    straight = steps(session(optimizer(4.0)), 4)
    changed = session(optimizer(4.0))
    steps(changed, 2)
    changed.updateOptimizerFromHost(optimizer(64.0))
    after = steps(changed, 2)
    # Powers of two: scaling changes no bit but those of the exponent.
    for name in WEIGHTS:
        np.testing.assert_allclose(after[name], straight[name], rtol=1e-6, err_msg=name)
    np.testing.assert_allclose(after["Accl1___w"], 16 * straight["Accl1___w"], rtol=1e-4)
