"""Random operators inside of branches, loops and called graphs: applied, distinct, repeatable."""

import numpy as np
import pytest

import popdist_onnx as popart

COUNT = 4000
KEEP = 0.7
FLOATS = ("FLOAT", [COUNT])


def program(graph, x="x"):
    """A program of one input and one weight of ones; ``graph`` makes the outputs of their product.

    Returns:
        The builder, the outputs and the loss: their sum.
    """
    builder = popart.Builder(opsets={"ai.onnx": 11, "ai.graphcore": 1})
    data = builder.addInputTensor(popart.TensorInfo(*FLOATS), x)
    weight = builder.addInitializedInputTensor(np.ones(COUNT, np.float32), "w")
    outputs = graph(builder, builder.aiOnnx.mul([data, weight]))
    total = outputs[0] if len(outputs) == 1 else builder.aiOnnx.sum(outputs)
    loss = builder.aiGraphcore.identityloss([total], popart.ReductionType.Sum)
    return builder.getModelProto(), outputs, loss


def dropped(builder, x):
    return builder.aiOnnx.dropout([x], 1, 1 - KEEP)[0]


def called(builder, h):
    inner = builder.createSubgraphBuilder()
    inner.addOutputTensor(dropped(inner, inner.addInputTensor(popart.TensorInfo(*FLOATS))))
    return [builder.aiGraphcore.call([h], 1, inner)[0] for _ in range(2)]


def looped(builder, h, turns=4, body=dropped):
    inner = builder.createSubgraphBuilder()
    inner.addInputTensor(popart.TensorInfo("INT64", []))
    again = inner.addInputTensor(popart.TensorInfo("BOOL", []))
    state = inner.addInputTensor(popart.TensorInfo(*FLOATS))
    inner.addOutputTensor(again)
    inner.addOutputTensor(body(inner, state))
    constants = [builder.aiOnnx.constant(np.array(one)) for one in (np.int64(turns), True)]
    return builder.aiOnnx.loop([*constants, h], 1, inner)


def nested(builder, h):
    """Two turns of two turns each, of a called graph."""

    def inner_loop(outer, state):
        return looped(outer, state, 2, lambda one, x: called(one, x)[0])[0]

    return looped(builder, h, 2, inner_loop)


def scanned(builder, h):
    """A state that drops in each of four turns; the slices are zeros."""
    inner = builder.createSubgraphBuilder()
    state = inner.addInputTensor(popart.TensorInfo(*FLOATS))
    inner.addInputTensor(popart.TensorInfo("FLOAT", [1]))
    inner.addOutputTensor(dropped(inner, state))
    zeros = builder.aiOnnx.constant(np.zeros((4, 1), np.float32))
    return builder.aiOnnx.scan([h, zeros], 1, inner, 1)


def chosen(builder, h):
    branches = []
    for _ in range(2):
        inner = builder.createSubgraphBuilder()
        inner.addInputTensorFromParentGraph(h)
        inner.addOutputTensor(dropped(inner, h))
        branches.append(inner)
    condition = builder.aiOnnx.constant(np.array(True))  # noqa: FBT003
    return builder.aiOnnx.logical_if([condition], 1, *branches)


PLACES = {"call": (called, 1), "if": (chosen, 1), "loop": (looped, 4), "scan": (scanned, 4)}
PLACES |= {"nested": (nested, 4)}


def made(proto, outputs, loss, seed=3, **options):
    anchors = {one: popart.AnchorReturnType("All") for one in (*outputs, "Gradient___w")}
    settings = popart.SessionOptions()
    for name, value in options.items():
        setattr(settings, name, value)
    session = popart.TrainingSession(
        proto,
        popart.DataFlow(1, anchors),
        loss,
        popart.ConstSGD(0.01),
        popart.DeviceManager().createCpuDevice(),
        userOptions=settings,
    )
    session.prepareDevice()
    session.setRandomSeed(seed)
    session.weightsFromHost()
    return session


def stepped(session, runs=1):
    arrays = session.initAnchorArrays()
    x = np.ones((runs, COUNT), np.float32)
    session.run(popart.PyStepIO({"x": x}, arrays))
    return {name: one.copy() for name, one in arrays.items()}


@pytest.mark.parametrize("place", PLACES)
def test_each_turn_drops_others_and_the_gradient_the_same(place):
    graph, turns = PLACES[place]
    proto, outputs, loss = program(graph)
    found = stepped(made(proto, outputs, loss))
    odds = KEEP**turns
    for one in outputs:
        assert (found[one] != 0).mean() == pytest.approx(odds, abs=5 / np.sqrt(COUNT))
        np.testing.assert_allclose(found[one][found[one] != 0], KEEP**-turns, rtol=1e-5)
    # The program is linear in the weight, and x is one.
    np.testing.assert_allclose(found["Gradient___w"], sum(found[one] for one in outputs), rtol=1e-5)
    if len(outputs) > 1:
        both = np.mean((found[outputs[0]] != 0) & (found[outputs[1]] != 0))
        assert both == pytest.approx(odds**2, abs=5 / np.sqrt(COUNT))


@pytest.mark.parametrize("place", PLACES)
def test_numbers_depend_on_seed_replica_and_update_alone(place, tmp_path):
    proto, outputs, loss = program(PLACES[place][0])
    straight = made(proto, outputs, loss)
    first, second = (stepped(straight)[outputs[0]] for _ in range(2))
    assert not np.array_equal(first != 0, second != 0)
    again = made(proto, outputs, loss)
    np.testing.assert_array_equal(stepped(again)[outputs[0]], first)
    again.modelToHost(str(tmp_path / "half.onnx"))
    resumed = made(str(tmp_path / "half.onnx"), outputs, loss)
    resumed.resetHostWeights(str(tmp_path / "half.onnx"))
    resumed.weightsFromHost()
    np.testing.assert_array_equal(stepped(resumed)[outputs[0]], second)
    other = stepped(made(proto, outputs, loss, seed=4))[outputs[0]]
    assert not np.array_equal(first != 0, other != 0)
    replicas = {"enableReplicatedGraphs": True, "replicatedGraphCount": 2}
    both = stepped(made(proto, outputs, loss, **replicas), runs=2)[outputs[0]]
    np.testing.assert_array_equal(both[0], first)
    assert not np.array_equal(both[1] != 0, first != 0)


DISTRIBUTIONS = {
    "randomnormal": ({"mean": 2.0, "scale": 3.0}, 2.0, 3.0),
    "randomuniform": ({"low": -1.0, "high": 3.0}, 1.0, 4 / np.sqrt(12)),
}


@pytest.mark.parametrize("op", DISTRIBUTIONS)
def test_numbers_of_a_turn_have_the_operators_distribution(op):
    settings, mean, deviation = DISTRIBUTIONS[op]

    def noise(inner, state):
        drawn = getattr(inner.aiOnnx, op)([COUNT], 1, **settings)
        return inner.aiOnnx.add([state, drawn])

    proto, outputs, loss = program(lambda builder, h: looped(builder, h, 4, noise))
    found = stepped(made(proto, outputs, loss))[outputs[0]].ravel() - 1
    error = 5 * deviation * 2 / np.sqrt(COUNT)
    assert found.mean() == pytest.approx(4 * mean, abs=error)
    assert found.std() == pytest.approx(2 * deviation, abs=error)
    assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 5 / np.sqrt(COUNT)
