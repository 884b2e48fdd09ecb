"""Gradients of any tensor, anchored; PopART's own tests read them of models without weights."""

import numpy as np
import pytest
import torch

import popdist_onnx as popart

CPU = popart.DeviceManager().createCpuDevice()
SHAPE = (4, 3)


def built(*, weight):
    """A model of two inputs, with or without a weight, and the ids of its tensors."""
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", SHAPE, "x")
    y = builder.addInputTensor("FLOAT", SHAPE[1:], "y")
    scale = builder.addInitializedInputTensor(WEIGHT, "w") if weight else None
    z = builder.aiOnnx.tanh([builder.aiOnnx.mul([x, y])])
    scaled = builder.aiOnnx.mul([z, scale]) if weight else builder.aiOnnx.mul([z, z])
    loss = builder.aiGraphcore.identityloss([scaled], popart.ReductionType.Sum)
    return builder, z, loss


WEIGHT = np.linspace(-1, 1, 3, dtype=np.float32)


def expected(x, y, *, weight, scaling=1.0):
    """The gradients that torch finds in double precision."""
    x, y = (torch.tensor(one, dtype=torch.float64, requires_grad=True) for one in (x, y))
    z = torch.tanh(x * y)
    z.retain_grad()
    loss = (z * (torch.tensor(WEIGHT, dtype=torch.float64) if weight else z)).sum()
    (loss * scaling).backward()
    return x.grad.numpy(), y.grad.numpy(), z.grad.numpy()


@pytest.mark.parametrize("weight", [False, True], ids=["without weights", "with a weight"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_gradients_of_inputs_and_of_what_is_between(weight, accumulation):
    builder, z, loss = built(weight=weight)
    ids = [f"Gradient___{name}" for name in ("x", "y", z, loss)]
    options = popart.SessionOptions()
    options.enableGradientAccumulation = accumulation > 1
    options.accumulationFactor = accumulation
    made = popart.TrainingSession(
        builder.getModelProto(),
        popart.DataFlow(1, dict.fromkeys(ids, popart.AnchorReturnType("All"))),
        loss,
        popart.SGD({"defaultLearningRate": (0.1, False), "lossScaling": (4.0, False)}),
        CPU,
        userOptions=options,
    )
    made.prepareDevice()
    made.weightsFromHost()
    rng = np.random.default_rng(1)
    xs = rng.normal(size=(accumulation, *SHAPE)).astype(np.float32)
    ys = rng.normal(size=(accumulation, *SHAPE[1:])).astype(np.float32)
    anchors = made.initAnchorArrays()
    made.run(popart.PyStepIO({"x": xs, "y": ys}, anchors))
    for index in range(accumulation):
        wanted = expected(xs[index], ys[index], weight=weight, scaling=4.0)
        for name, gradient in zip(ids, wanted, strict=False):
            found = anchors[name].reshape(accumulation, *gradient.shape)[index]
            np.testing.assert_allclose(found, gradient, rtol=2e-5, atol=1e-5)
    np.testing.assert_array_equal(anchors[ids[-1]].reshape(-1), [4.0] * accumulation)


def test_a_model_without_weights_has_nothing_to_exchange():
    builder, _, loss = built(weight=False)
    options = popart.SessionOptions()
    options.hostAllReduce = True
    flow = popart.DataFlow(1, {"Gradient___x": popart.AnchorReturnType("All")})
    made = popart.TrainingSession(
        builder.getModelProto(), flow, loss, popart.ConstSGD(0.1), CPU, userOptions=options
    )
    made.prepareDevice()
    assert made.getHostReduceStreamIds() == []
    anchors = made.initAnchorArrays()
    x, y = np.ones(SHAPE, np.float32), np.ones(SHAPE[1:], np.float32)
    made.run(popart.PyStepIO({"x": x, "y": y}, anchors))
    wanted = expected(x, y, weight=False)[0]
    np.testing.assert_allclose(anchors["Gradient___x"], wanted, rtol=1e-5)


def gradients(build, arrays, ids, reduction=popart.ReductionType.Sum):
    """The anchored gradients of the sum of what `build` makes of inputs."""
    builder = popart.Builder()
    types = {np.dtype(np.float32): "FLOAT", np.dtype(np.int32): "INT32"}
    inputs = [builder.addInputTensor(types[one.dtype], one.shape) for one in arrays]
    result = build(builder, *inputs)
    loss = builder.aiGraphcore.identityloss([result], reduction)
    names = [f"Gradient___{one}" for one in ids(inputs, builder)]
    made = popart.TrainingSession(
        builder.getModelProto(),
        popart.DataFlow(1, dict.fromkeys(names, popart.AnchorReturnType("All"))),
        loss,
        popart.ConstSGD(0.1),
        CPU,
    )
    made.prepareDevice()
    made.weightsFromHost()
    anchors = made.initAnchorArrays()
    made.run(popart.PyStepIO(dict(zip(inputs, arrays, strict=True)), anchors))
    return [anchors[name] for name in names]


@pytest.mark.parametrize("method", ["ceil", "floor", "sign"])
def test_steps_have_a_gradient_of_zeros(method):
    """As in torch: zeros, where comparisons have no gradient at all."""
    x = np.linspace(-2, 2, 7, dtype=np.float32)
    build = lambda builder, x: getattr(builder.aiOnnx, method)([x])  # noqa: E731
    tensor = torch.tensor(x, requires_grad=True)
    getattr(torch, method)(tensor).sum().backward()
    (found,) = gradients(build, [x], lambda inputs, _: inputs)
    np.testing.assert_array_equal(found, tensor.grad.numpy())


def test_gradients_of_a_constant():
    rows, chosen = np.arange(9, dtype=np.float32).reshape(3, 3), np.array([0, 2, 2], np.int32)
    names = []

    def build(builder):
        names.append(builder.aiOnnx.constant(rows))
        return builder.aiOnnx.gather([names[0], builder.aiOnnx.constant(chosen)], 0)

    tensor = torch.tensor(rows, requires_grad=True)
    tensor[torch.tensor(chosen).long()].sum().backward()
    (found,) = gradients(build, [], lambda _inputs, _builder: names)
    np.testing.assert_array_equal(found, tensor.grad.numpy())


def test_gradients_of_no_rows():
    x, none = np.ones((9, 2), np.float32), np.zeros(0, np.int32)
    build = lambda builder, x, at: builder.aiOnnx.gather([x, at], 0)  # noqa: E731
    (found,) = gradients(build, [x, none], lambda inputs, _: inputs[:1])
    np.testing.assert_array_equal(found, np.zeros_like(x))


@pytest.mark.parametrize("axis", [0, 2])
def test_gradients_of_whole_numbers(axis):
    """A sum of medians, without weights: PopART differentiates integers, torch floats."""
    x = np.random.default_rng(0).permutation(60).reshape(3, 4, 5).astype(np.int32)
    tensor = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    tensor.median(dim=axis).values.sum().backward()
    build = lambda builder, x: builder.aiGraphcore.reducemedian([x], axes=[axis])[0]  # noqa: E731
    (found,) = gradients(build, [x], lambda inputs, _: inputs)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, tensor.grad.numpy())
