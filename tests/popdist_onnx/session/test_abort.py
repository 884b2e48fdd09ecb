"""`aiGraphcore.abort` ends a run in which its condition is not zero, and no other."""

import numpy as np
import onnx
import pytest

import popdist_onnx as popart
from popdist_onnx.errors import NotOnHostError

CPU = popart.DeviceManager().createCpuDevice()
FINE, BAD = 0.5, 3.0
"""Inputs: the model ends the run where one is larger than `LIMIT`."""

LIMIT = 2.0


def network(*, condition="bool", calls=0):
    """``loss = |x w|``, which ends the run where an element of x is too large."""
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [2]), "x")
    w = builder.addInitializedInputTensor(np.ones(2, np.float32), "w")
    checked = builder
    given = x
    if calls:
        checked = builder.createSubgraphBuilder()
        given = checked.addInputTensor(popart.TensorInfo("FLOAT", [2]))
    limit = checked.aiOnnx.constant(np.float32(LIMIT))
    large = checked.aiOnnx.greater([given, limit])
    if condition != "bool":
        large = checked.aiOnnx.cast([large], condition)
    checked.aiGraphcore.abort([large], debugContext="too large")
    if calls:
        checked.addOutputTensor(checked.aiOnnx.identity([given]))
        for _ in range(calls):
            (x,) = builder.aiGraphcore.call([x], 1, checked)
    loss = builder.aiGraphcore.l1loss([builder.aiOnnx.mul([x, w])], 1.0)
    return builder.getModelProto(), loss


def training(proto, loss, updates=1, *, options=None):
    session = popart.TrainingSession(
        proto,
        popart.DataFlow(updates, {loss: popart.AnchorReturnType("All")}),
        loss,
        popart.SGD({"defaultLearningRate": (0.5, False)}),
        CPU,
        userOptions=options,
    )
    session.prepareDevice()
    session.weightsFromHost()
    return session


def run(session, x):
    anchors = session.initAnchorArrays()
    session.run(popart.PyStepIO({"x": np.asarray(x, np.float32)}, anchors))
    session.weightsToHost()
    return session.fetched["w"].copy()


@pytest.mark.parametrize("condition", ["bool", "INT32", "FLOAT", "FLOAT16", "UINT8"])
def test_a_run_ends_where_the_condition_is_not_zero(condition):
    session = training(*network(condition=condition))
    np.testing.assert_allclose(run(session, [FINE, FINE]), 1 - 0.5 * FINE / 2)
    with pytest.raises(popart.poplar_runtime_error, match="abort 'too large' of tensor") as caught:
        run(session, [FINE, BAD])
    assert caught.value.code == "PD599"
    assert "seen:     '1 micro-batch'" in str(caught.value)
    # What comes after is a run like any other.
    run(session, [FINE, FINE])


@pytest.mark.parametrize("number", [np.nan, -1.0, 1e-30])
def test_every_number_but_zero_is_a_condition(number):
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [2]), "x")
    builder.aiGraphcore.abort([x])
    y = builder.aiOnnx.neg([x])
    session = inference(builder.getModelProto(), y)
    session.run(popart.PyStepIO({"x": np.zeros(2, np.float32)}, session.initAnchorArrays()))
    x = np.asarray([0, number], np.float32)
    with pytest.raises(popart.poplar_runtime_error, match="PD599"):
        session.run(popart.PyStepIO({"x": x}, session.initAnchorArrays()))


def inference(proto, *anchors):
    session = popart.InferenceSession(proto, popart.DataFlow(1, list(anchors)), CPU)
    session.prepareDevice()
    session.weightsFromHost()
    return session


def test_without_a_condition_every_run_ends():
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [2]), "x")
    y = builder.aiOnnx.neg([x])
    builder.aiGraphcore.abort(debugContext="always")
    session = inference(builder.getModelProto(), y)
    anchors = session.initAnchorArrays()
    with pytest.raises(popart.poplar_runtime_error, match="abort 'always' ended the run"):
        session.run(popart.PyStepIO({"x": np.ones(2, np.float32)}, anchors))


def test_later_updates_of_a_step_are_not_computed():
    session = training(*network(), updates=3)
    with pytest.raises(popart.poplar_runtime_error, match="PD599"):
        run(session, [[FINE, FINE], [FINE, BAD], [FINE, FINE]])
    session.weightsToHost()
    np.testing.assert_allclose(session.fetched["w"], 1 - 0.5 * np.array([2 * FINE, FINE + BAD]) / 2)


def test_every_micro_batch_of_an_update_counts():
    options = popart.SessionOptions()
    options.enableGradientAccumulation, options.accumulationFactor = True, 4
    session = training(*network(), options=options)
    fine, bad = [FINE, FINE], [BAD, FINE]
    run(session, [fine] * 4)
    with pytest.raises(popart.poplar_runtime_error, match="2 micro-batches"):
        run(session, [fine, bad, bad, fine])


def test_aborts_of_called_graphs_count_for_each_call():
    proto, loss = network(calls=2)
    session = training(proto, loss)
    run(session, [FINE, FINE])
    with pytest.raises(popart.poplar_runtime_error, match="2 micro-batches") as caught:
        run(session, [BAD, FINE])
    assert str(caught.value).count("abort '") == 2


def test_aborts_inside_of_branches_are_refused():
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [2]), "x")
    condition = builder.addInputTensor(popart.TensorInfo("BOOL", []), "condition")
    branches = []
    for aborts in (True, False):
        branch = builder.createSubgraphBuilder()
        inner = branch.aiOnnx.neg([x])
        if aborts:
            branch.aiGraphcore.abort()
        branch.addOutputTensor(inner)
        branches.append(branch)
    y = builder.aiOnnx.logical_if([condition], 1, branches[1], branches[0])[0]
    with pytest.raises(NotOnHostError, match="inside of a loop or a branch"):
        inference(builder.getModelProto(), y)


def test_a_saved_model_keeps_its_aborts(tmp_path):
    session = training(*network())
    run(session, [FINE, FINE])
    session.modelToHost(tmp_path / "model.onnx")
    saved = onnx.load(tmp_path / "model.onnx")
    assert [node.op_type for node in saved.graph.node].count("Abort") == 1
    again = training(str(tmp_path / "model.onnx"), network()[1])
    with pytest.raises(popart.poplar_runtime_error, match="PD599"):
        run(again, [FINE, BAD])
