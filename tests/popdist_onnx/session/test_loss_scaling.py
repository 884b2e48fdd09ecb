"""Automatic loss scaling: the scale follows the gradients, and weights do not follow the scale."""

import numpy as np
import pytest
import torch

import popdist_onnx as popart
from popdist_onnx.types.enums import GradientTensorTrackingMethod
from tests.popdist_onnx import networks

BATCH, STEPS, START, RATE = 3, 8, 4.0, 0.1
EDGE = 2.0
THRESHOLD = 0.02
WATCHED = ["w1", "w2"]


def session(accumulation=1, period=1, values=(), model=None, **settings):
    options = popart.SessionOptions()
    options.enableGradientAccumulation = accumulation > 1
    options.accumulationFactor = accumulation
    chosen = options.automaticLossScalingSettings
    chosen.enabled = True
    chosen.binEdgeLocation = EDGE / float(np.finfo(np.float64).max)
    chosen.thresholdUpperCountProportion = THRESHOLD
    chosen.updatePeriod = period
    chosen.gradientTensorTrackingMethod = (
        GradientTensorTrackingMethod.GradientsOfUserSpecifiedTensors
    )
    chosen.toTrackTensors = WATCHED
    for name, value in settings.items():
        setattr(chosen, name, value)
    every = popart.AnchorReturnType("All")
    made = popart.TrainingSession(
        model or networks.perceptron(BATCH),
        popart.DataFlow(STEPS, {"loss": every, "Gradient___loss": every}),
        "loss",
        popart.SGD(
            {"defaultLearningRate": (RATE, False), "lossScaling": (START, False), **dict(values)}
        ),
        popart.DeviceManager().createCpuDevice(),
        userOptions=options,
    )
    made.prepareDevice()
    made.weightsFromHost()
    return made


def by_torch(x, target, period):
    """The loss scales of the updates, counted of torch's own gradients, and the weights."""
    model = networks.TorchPerceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    scale, scales, large, elements = START, [], 0, 0
    for update, (rows, wanted) in enumerate(zip(x, target, strict=True), 1):
        scales.append(scale)
        total = {}
        for part, goal in zip(rows, wanted, strict=True):
            optimizer.zero_grad()
            model(torch.from_numpy(part), torch.from_numpy(goal)).backward()
            for name, weight in model.named_parameters():
                total[name] = total.get(name, 0) + weight.grad.clone()
            for name in WATCHED:
                scaled = getattr(model, name).grad.abs() * scale
                large, elements = large + int((scaled > EDGE).sum()), elements + scaled.numel()
        for name, weight in model.named_parameters():
            weight.grad = total[name]
        optimizer.step()
        if update % period == 0:
            scale *= 0.5 if large / elements > THRESHOLD else 2.0
            large = elements = 0
    return scales, {name: one.detach().numpy() for name, one in model.named_parameters()}


@pytest.mark.parametrize(("accumulation", "period"), [(1, 1), (2, 1), (1, 3), (2, 2)])
def test_the_scale_follows_the_share_of_large_gradients(accumulation, period, tmp_path):
    made = session(accumulation, period)
    x, target = networks.batches(STEPS, accumulation, BATCH)
    anchors = made.initAnchorArrays()
    made.run(popart.PyStepIO({"x": x, "target": target}, anchors))
    scales, weights = by_torch(x, target, period)
    found = anchors["Gradient___loss"].reshape(STEPS, accumulation)
    np.testing.assert_array_equal(found, np.repeat(scales, accumulation).reshape(found.shape))
    assert min(scales) < max(scales)
    made.weightsToHost()
    for name, expected in weights.items():
        np.testing.assert_allclose(made.fetched[name], expected, rtol=0, atol=1e-12)
    made.modelToHost(tmp_path / "model.onnx")
    again = session(accumulation, period, model=str(tmp_path / "model.onnx"))
    for one in (made, again):
        one.run(popart.PyStepIO({"x": x, "target": target}, anchors))
        if one is made:
            expected = anchors["Gradient___loss"].copy()
    if STEPS % period == 0:
        np.testing.assert_array_equal(anchors["Gradient___loss"], expected)


@pytest.mark.parametrize("method", list(GradientTensorTrackingMethod)[:2])
def test_gradients_are_found_by_kind(method):
    made = session(gradientTensorTrackingMethod=method, toTrackTensors=[])
    x, target = networks.batches(STEPS, BATCH)
    anchors = made.initAnchorArrays()
    made.run(popart.PyStepIO({"x": x, "target": target}, anchors))
    assert len(np.unique(anchors["Gradient___loss"])) > 1


def test_what_cannot_be_scaled():
    for settings, what in (
        ({"values": {"lossScaling": (2.0, True)}}, "must have non-const loss scaling"),
        ({"toTrackTensors": ["nothing"]}, "tensor 'nothing' has no gradient"),
        ({"toTrackTensors": []}, "No tracked tensors were found"),
    ):
        with pytest.raises(popart.popart_exception, match=what):
            session(**settings)


def test_a_new_learning_rate_does_not_reset_the_scale():
    made = session(thresholdUpperCountProportion=1.0)  # always doubled
    x, target = networks.batches(STEPS, BATCH)
    anchors = made.initAnchorArrays()
    made.run(popart.PyStepIO({"x": x, "target": target}, anchors))
    made.updateOptimizerFromHost(
        popart.SGD({"defaultLearningRate": (RATE / 2, False), "lossScaling": (START, False)})
    )
    made.run(popart.PyStepIO({"x": x, "target": target}, anchors))
    expected = START * 2.0 ** np.arange(STEPS, 2 * STEPS)
    np.testing.assert_array_equal(anchors["Gradient___loss"], expected)


@pytest.mark.parametrize("start", [1.0, 2.0])
@pytest.mark.parametrize("half", [False, True])
def test_the_scale_of_half_precision_has_a_limit(half, start):
    """Without gradients to fear for, PopART doubles: 1, 2, 4, ... up to 2 ** 15."""
    steps, rate = 20, 0.1
    one = np.ones(1, np.float32)
    builder = popart.Builder()
    product = builder.aiOnnx.matmul([builder.addInitializedInputTensor(one) for _ in range(2)])
    error = builder.aiOnnx.sub([builder.addInitializedInputTensor(one), product])
    square = builder.aiOnnx.mul([error, error])
    loss = builder.aiOnnx.cast([square], "FLOAT16" if half else "FLOAT")
    options = popart.SessionOptions()
    options.automaticLossScalingSettings.enabled = True
    ids = ["lossScaleUpdateFactor", "finalLossScale", "finalInverseLossScale_0"]
    made = popart.TrainingSession(
        builder.getModelProto(),
        popart.DataFlow(steps, dict.fromkeys(ids, popart.AnchorReturnType("All"))),
        loss,
        popart.SGD(
            {
                "defaultLearningRate": (rate, False),
                "defaultMomentum": (0, True),
                "lossScaling": (start, False),
            }
        ),
        popart.DeviceManager().createCpuDevice(),
        userOptions=options,
    )
    options.automaticLossScalingSettings.enabled = False  # for another session
    made.prepareDevice()
    made.weightsFromHost()
    anchors = made.initAnchorArrays()
    made.run(popart.PyStepIO({}, anchors))
    factors = 2.0 ** np.arange(steps)
    factors = np.minimum(factors, 2**15 / start) if half else factors
    for name, expected in zip(ids, (factors, factors * start, rate / start / factors), strict=True):
        np.testing.assert_allclose(anchors[name], expected, rtol=1e-6)


def test_sessions_that_cannot_scale():
    options = popart.SessionOptions()
    options.automaticLossScalingSettings.enabled = True
    device = popart.DeviceManager().createCpuDevice()
    with pytest.raises(popart.popart_exception, match="Only compatible when doing training"):
        popart.InferenceSession(
            networks.perceptron(BATCH), popart.DataFlow(1, ["loss"]), device, userOptions=options
        )
    options.enablePipelining = True
    optimizer = popart.SGD({"lossScaling": (START, False)})
    with pytest.raises(popart.popart_exception, match=r"'enableGradientAccumulation'.*'false'"):
        popart.TrainingSession(
            networks.perceptron(BATCH),
            popart.DataFlow(1, ["loss"]),
            "loss",
            optimizer,
            device,
            userOptions=options,
        )
