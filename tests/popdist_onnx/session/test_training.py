"""Training sessions in one process: against plain torch, and against themselves after a break."""

import numpy as np
import onnx
import pytest
import torch

import popdist_onnx as popart
from tests.popdist_onnx import networks

MICRO_BATCH = 4
EXACT = 1e-14


def session(
    model=None, *, batches=2, accumulation=1, replicas=1, anchors=None, optimizer=None, **o
):
    options = popart.SessionOptions()
    options.enableGradientAccumulation = accumulation > 1
    options.accumulationFactor = accumulation
    options.enableReplicatedGraphs = replicas > 1
    options.replicatedGraphCount = replicas
    for name, value in o.items():
        setattr(options, name, value)
    made = popart.TrainingSession(
        model or networks.perceptron(MICRO_BATCH),
        popart.DataFlow(batches, anchors or {"loss": popart.AnchorReturnType("All")}),
        "loss",
        optimizer or popart.SGD({"defaultLearningRate": (0.1, False)}),
        popart.DeviceManager().createCpuDevice(),
        userOptions=options,
    )
    made.prepareDevice()
    made.weightsFromHost()
    return made


def run(made, x, target):
    anchors = made.initAnchorArrays()
    made.run(popart.PyStepIO({"x": x, "target": target}, anchors))
    return anchors


def weights_of(made):
    made.weightsToHost()
    found = {name: np.empty_like(a) for name, a in made.host_tensors.items()}
    made.readWeights(popart.PyWeightsIO(found))
    return found


@pytest.mark.parametrize(("accumulation", "replicas"), [(1, 1), (3, 1), (2, 2), (1, 3)], ids=str)
@pytest.mark.parametrize("reduction", ["Sum", "Mean"])
def test_weights_are_those_of_plain_torch(accumulation, replicas, reduction):
    made = session(
        accumulation=accumulation,
        replicas=replicas,
        accumulationAndReplicationReductionType=popart.ReductionType[reduction],
    )
    x, target = networks.batches(2, accumulation, replicas, MICRO_BATCH)
    losses = run(made, x, target)["loss"].reshape(2, accumulation, replicas)
    model = networks.TorchPerceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in range(2):
        optimizer.zero_grad()
        for at in np.ndindex(accumulation, replicas):
            loss = model(*(torch.from_numpy(a[batch][at]) for a in (x, target)))
            (loss / (accumulation * replicas if reduction == "Mean" else 1)).backward()
            np.testing.assert_allclose(losses[(batch, *at)], loss.item(), rtol=0, atol=EXACT)
        optimizer.step()
    for name, array in weights_of(made).items():
        if name in networks.weights():
            expected = getattr(model, name).detach().numpy()
            np.testing.assert_allclose(array, expected, rtol=0, atol=EXACT)


def test_single_precision_updates_folded_into_products_stay_close_to_torch():
    made = session(networks.perceptron(MICRO_BATCH, dtype=np.float32), batches=20)
    x, target = networks.batches(20, MICRO_BATCH, dtype=np.float32)
    run(made, x, target)
    model = networks.TorchPerceptron(dtype=np.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows, wanted in zip(x, target, strict=True):
        optimizer.zero_grad()
        model(torch.from_numpy(rows), torch.from_numpy(wanted)).backward()
        optimizer.step()
    for name, array in weights_of(made).items():
        expected = getattr(model, name).detach().numpy()
        np.testing.assert_allclose(array, expected, rtol=0, atol=2e-6)


class TestAnchors:
    """What comes back, over 4 batches of 2 accumulation steps and 2 replicas."""

    SHAPE = (4, 2, 2, MICRO_BATCH)

    def losses(self, *art):
        made = session(
            batches=4,
            accumulation=2,
            replicas=2,
            anchors={"loss": popart.AnchorReturnType(*art)},
        )
        return run(made, *networks.batches(*self.SHAPE))["loss"]

    def test_return_types(self):
        everything = self.losses("All")
        assert everything.shape == (4, 2, 2)
        assert len(np.unique(everything)) == everything.size
        # N counts micro-batches: of two accumulation steps it is every second one.
        every_second = everything[:, 1].reshape(2, 2, 2)
        np.testing.assert_array_equal(self.losses("EveryN", 2), every_second)
        np.testing.assert_array_equal(self.losses("Final"), everything[-1, -1])
        np.testing.assert_allclose(self.losses("Sum"), everything.sum((0, 1)), rtol=1e-14)

    @pytest.mark.parametrize("accumulation", [1, 2])
    def test_any_tensor(self, accumulation):
        ids = ["x", "hidden", "w1", "Gradient___w1", "scaledLearningRate0___default___DOUBLE"]
        every = popart.AnchorReturnType("All")
        made = session(
            batches=1, accumulation=accumulation, anchors=dict.fromkeys(["loss", *ids], every)
        )
        before = networks.weights()
        x, target = networks.batches(1, accumulation, MICRO_BATCH)
        found = run(made, x, target)
        np.testing.assert_array_equal(found["x"].reshape(x.shape), x)
        np.testing.assert_allclose(
            found["hidden"].reshape(*x.shape[:-1], -1), x @ before["w1"] + before["b1"], atol=EXACT
        )
        gradient = found["Gradient___w1"].reshape(accumulation, *before["w1"].shape).sum(0)
        after = found["w1"].reshape(accumulation, *before["w1"].shape)[-1]
        np.testing.assert_allclose(after, before["w1"] - 0.1 * gradient, atol=1e-9)
        np.testing.assert_array_equal(after, weights_of(made)["w1"])


def test_an_optimizer_that_a_program_has_changed_is_compared_with_the_one_it_was():
    """Settings of one weight need another graph, also where the object is the session's own."""
    optimizer = popart.SGD({"defaultLearningRate": (0.1, False)})
    made = session(batches=1, optimizer=optimizer)
    optimizer.insertSpecific("w1", {"learningRate": (5.0, False)})
    with pytest.raises(popart.popart_exception, match="have a learningRate of their own"):
        made.updateOptimizerFromHost(optimizer)
    before = weights_of(made)
    run(made, *networks.batches(1, MICRO_BATCH))
    assert np.abs(weights_of(made)["w1"] - before["w1"]).max() < 0.5


class TestCopiesOfWeights:
    def test_what_was_fetched_is_not_what_is_loaded(self):
        made = session()
        first = weights_of(made)
        run(made, *networks.batches(2, MICRO_BATCH))
        assert np.abs(weights_of(made)["w1"] - first["w1"]).max() > 1e-3
        made.weightsFromHost()  # the first weights again, as weightsToHost filled another buffer
        np.testing.assert_array_equal(weights_of(made)["w1"], first["w1"])

    def test_model_to_host_refreshes_what_is_loaded(self, tmp_path):
        made = session()
        run(made, *networks.batches(2, MICRO_BATCH))
        made.modelToHost(tmp_path / "model.onnx")
        trained = weights_of(made)
        made.weightsFromHost()
        np.testing.assert_array_equal(weights_of(made)["w1"], trained["w1"])

    def test_written_weights_arrive_with_weights_from_host(self):
        made = session()
        ones = np.ones_like(networks.weights()["w1"])
        made.writeWeights(popart.PyWeightsIO({"w1": ones, "unknown": ones}))
        np.testing.assert_array_equal(weights_of(made)["w1"], networks.weights()["w1"])
        made.weightsFromHost()
        np.testing.assert_array_equal(weights_of(made)["w1"], ones)

    def test_reset_takes_another_models_weights_and_asks_for_loading(self):
        made = session()
        made.resetHostWeights(networks.perceptron(MICRO_BATCH, seed=9))
        with pytest.raises(popart.popart_exception, match="Must call weightsFromHost before run"):
            run(made, *networks.batches(2, MICRO_BATCH))
        made.weightsFromHost()
        np.testing.assert_array_equal(weights_of(made)["w1"], networks.weights(9)["w1"])

    def test_reset_refuses_unknown_initializers_unless_told(self):
        model = onnx.load_from_string(networks.perceptron(MICRO_BATCH, seed=9))
        model.graph.initializer[0].name = "other"
        made = session()
        with pytest.raises(popart.popart_exception, match="resetWeights, no tensor 'other'"):
            made.resetHostWeights(model.SerializeToString())
        made.resetHostWeights(
            model.SerializeToString(), ignoreWeightsInModelWithoutCorrespondingHostWeight=True
        )
        np.testing.assert_array_equal(made.host_tensors["b1"], networks.weights(9)["b1"])


OPTIMIZERS = {
    "momentum": lambda: popart.SGD(
        {"defaultLearningRate": (0.1, True), "defaultMomentum": (0.9, True)}
    ),
    "adam": lambda: popart.Adam({"defaultLearningRate": (0.01, False)}),
    "adadelta": lambda: popart.Adaptive(
        {"defaultLearningRate": (0.1, True)}, mode=popart.AdaptiveMode.AdaDelta
    ),
}


def from_builder(path):
    return session(popart.Builder(str(path)).getModelProto())


def from_reset_weights(path):
    other = session(networks.perceptron(MICRO_BATCH, dropout=0.5))
    other.resetHostWeights(str(path))
    other.weightsFromHost()
    return other


@pytest.mark.parametrize("way", [from_builder, from_reset_weights])
def test_every_way_to_resume_continues_the_random_streams(tmp_path, way):
    x, target = networks.batches(3, 2, MICRO_BATCH)
    straight = session(networks.perceptron(MICRO_BATCH, dropout=0.5))
    straight.setRandomSeed(5)
    run(straight, x[0], target[0])
    straight.modelToHost(tmp_path / "half.onnx")
    other = way(tmp_path / "half.onnx")
    for step in (1, 2):
        run(straight, x[step], target[step])
        run(other, x[step], target[step])
    for key, wanted in weights_of(straight).items():
        np.testing.assert_array_equal(weights_of(other)[key], wanted, err_msg=key)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("network", [{}, {"dropout": 0.5}, {"batchnorm": True}], ids=str)
def test_a_resumed_training_continues_bit_for_bit(tmp_path, name, network):
    model = networks.perceptron(MICRO_BATCH, **network)
    x, target = networks.batches(3, 2, 2, MICRO_BATCH)
    straight = session(model, accumulation=2, optimizer=OPTIMIZERS[name]())
    broken = session(model, accumulation=2, optimizer=OPTIMIZERS[name]())
    if network.get("dropout"):
        straight.setRandomSeed(5)
        broken.setRandomSeed(5)
    for step in range(3):
        run(straight, x[step], target[step])
        if step == 1:
            broken.modelToHost(tmp_path / "half.onnx")
            resumed = str(tmp_path / "half.onnx")
            broken = session(resumed, accumulation=2, optimizer=OPTIMIZERS[name]())
        run(broken, x[step], target[step])
    wanted, seen = weights_of(straight), weights_of(broken)
    assert set(wanted) == set(seen)
    for key in wanted:
        np.testing.assert_array_equal(seen[key], wanted[key], err_msg=key)


def test_a_saved_model_is_valid_and_runs_elsewhere(tmp_path):
    made = session(optimizer=OPTIMIZERS["adam"]())
    run(made, *networks.batches(2, MICRO_BATCH))
    made.modelToHost(tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(model)
    states = {tensor.name for tensor in model.graph.initializer} - set(networks.weights())
    assert states == {
        f"{prefix}___{weight}"
        for prefix in ("Accl1", "Accl2", "Step")
        for weight in networks.weights()
    }
    inference = popart.InferenceSession(
        str(tmp_path / "model.onnx"),
        popart.DataFlow(1, ["y"]),
        popart.DeviceManager().createCpuDevice(),
    )
    inference.prepareDevice()
    x, _ = networks.batches(MICRO_BATCH)
    anchors = inference.initAnchorArrays()
    target = np.zeros((MICRO_BATCH, networks.OUTPUTS))
    inference.run(popart.PyStepIO({"x": x, "target": target}, anchors))
    w = weights_of(made)
    expected = np.tanh(x @ w["w1"] + w["b1"]) @ w["w2"] + w["b2"]
    np.testing.assert_allclose(anchors["y"], expected, atol=EXACT)


def test_dropout_repeats_with_its_seed_and_changes_with_it():
    model = networks.perceptron(MICRO_BATCH, dropout=0.5)
    x, target = networks.batches(2, MICRO_BATCH)

    def losses(seed):
        made = session(model)
        made.setRandomSeed(seed)
        return run(made, x, target)["loss"]

    np.testing.assert_array_equal(losses(1), losses(1))
    assert not np.array_equal(losses(1), losses(2))


def test_new_values_of_the_optimizer_take_effect():
    made = session(batches=1)
    x, target = networks.batches(1, MICRO_BATCH)
    before = weights_of(made)
    made.updateOptimizerFromHost(popart.SGD({"defaultLearningRate": (0.0, False)}))
    run(made, x, target)
    np.testing.assert_array_equal(weights_of(made)["w1"], before["w1"])
    with pytest.raises(popart.popart_exception, match="New optimizer is not a valid replacement"):
        made.updateOptimizerFromHost(popart.SGD({"defaultLearningRate": (0.1, True)}))


def test_callbacks_take_part_in_the_exchange_of_each_gradient():
    made = session(hostAllReduce=True, accumulation=2)
    order = []

    def store(handle):
        return lambda array: order.append((handle, array.copy()))

    def load(handle):
        def double(array):
            order.append((handle, None))
            array *= 2

        return double

    handles = made.getHostReduceStreamIds()
    assert set(handles) == {
        f"{stream}__FinalReducedGradient___{weight}"
        for stream in ("gradientStore", "gradientLoad")
        for weight in networks.weights()
    }
    for handle in handles:
        kind = store if handle.startswith("gradientStore") else load
        made.connectStreamToCallback(handle, kind(handle), 0)
    x, target = networks.batches(2, 2, MICRO_BATCH)
    before = weights_of(made)
    run(made, x, target)
    kinds = [handle.partition("__")[0] for handle, _ in order]
    assert kinds == (["gradientStore"] * 4 + ["gradientLoad"] * 4) * 2
    reference = session(accumulation=2, optimizer=popart.SGD({"defaultLearningRate": (0.2, False)}))
    run(reference, x, target)
    np.testing.assert_allclose(weights_of(made)["w1"], weights_of(reference)["w1"], atol=EXACT)
    assert np.abs(before["w1"] - weights_of(made)["w1"]).max() > 1e-3


@pytest.mark.parametrize("remote", [False, True], ids=["streams", "remote buffers"])
def test_gradients_travel_through_remote_buffers_as_through_memory(remote):
    made = session(hostAllReduce=True, hostAllReduceRemoteBuffer=remote)
    for handle in made.getHostReduceStreamIds():
        made.connectStreamToCallback(handle, lambda _array: None, 0)
    reference = session()
    x, target = networks.batches(2, MICRO_BATCH)
    run(made, x, target)
    run(reference, x, target)
    for name, array in weights_of(reference).items():
        np.testing.assert_allclose(weights_of(made)[name], array, rtol=0, atol=EXACT)


def test_the_programs_functions_update_the_weights():
    """Each gets the gradient, and fills in the next value: SGD by hand, as torch does it."""
    made = session(hostAllReduce=True, hostWeightUpdate=True)
    now = networks.weights()
    handles = made.getHostReduceStreamIds()
    assert set(handles) == {f"gradientStore__Gradient___{name}" for name in now} | {
        f"weightLoad__{name}" for name in now
    }

    def store(name):
        return lambda gradient: now.update({name: now[name] - 0.1 * gradient})

    def load(name):
        return lambda weight: np.copyto(weight, now[name])

    for name in now:
        made.connectStreamToCallback(f"gradientStore__Gradient___{name}", store(name), 0)
        made.connectStreamToCallback(f"weightLoad__{name}", load(name), 0)
    x, target = networks.batches(2, MICRO_BATCH)
    run(made, x, target)
    model = networks.TorchPerceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows, wanted in zip(x, target, strict=True):
        optimizer.zero_grad()
        model(torch.from_numpy(rows), torch.from_numpy(wanted)).backward()
        optimizer.step()
    for name, array in weights_of(made).items():
        expected = getattr(model, name).detach().numpy()
        np.testing.assert_allclose(array, expected, rtol=0, atol=EXACT)
    with pytest.raises(popart.popart_exception, match="own functions compute the weights"):
        session(hostAllReduce=True, hostWeightUpdate=True).connect_horovod(None)


def test_synthetic_data_need_no_arrays():
    made = session(syntheticDataMode=popart.SyntheticDataMode.RandomNormal)
    anchors = made.initAnchorArrays()
    anchors["loss"][:] = -1
    made.run(popart.PyStepIO({}, anchors))
    assert (anchors["loss"] == -1).all()


def test_cycles_are_counted_on_demand():
    made = session(instrumentWithHardwareCycleCounter=True)
    with pytest.raises(popart.popart_exception, match="Must call run before getCycleCount"):
        made.getCycleCount()
    run(made, *networks.batches(2, MICRO_BATCH))
    assert isinstance(made.getCycleCount(), int)
    assert made.getCycleCount() > 0


def test_data_can_come_from_callbacks():
    x, target = networks.batches(2, MICRO_BATCH)
    arrays, calls = {"x": iter(x), "target": iter(target)}, []
    out = np.empty(2)
    places = iter([out[:1], out[1:]])
    io = popart.PyStepIOCallback(
        lambda name, _prefetch: next(arrays[name]),
        lambda name: calls.append(f"used {name}"),
        lambda _name: next(places),
        lambda name: calls.append(f"wrote {name}"),
    )
    session().run(io)
    np.testing.assert_array_equal(out, run(session(), x, target)["loss"])
    assert calls == ["wrote loss", "used x", "used target"] * 2


def test_reports_say_what_runs():
    made = session()
    assert " ai.onnx.Gemm" in made.getSummaryReport()
    graph = onnx.load_from_string(made.getSerializedGraph()).graph
    assert "UpdatedVar___w1" in {value.name for value in graph.output}
    assert "UpdatedVar___w1" in made._serializeIr(popart.IrSerializationFormat.JSON)
    assert made.getInfo("hidden") == popart.TensorInfo("DOUBLE", [MICRO_BATCH, networks.HIDDEN])
    with pytest.raises(popart.popart_exception, match="getReport cannot be expressed for a host"):
        made.getReport()
