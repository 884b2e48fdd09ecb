"""Real jobs whose instances differ: an error that says where, on all of them, and never a hang."""

import ml_dtypes
import numpy as np
import torch

import popdist
import popdist.popart
import popdist_onnx as popart
import popdist_onnx.horovod as hvd
from popdist.errors import BackendError
from tests.distributed.jobs import run_job
from tests.popdist_onnx import networks

MICRO_BATCH = 3


def session(*, seed=0, dtype=np.float64, lr=0.1, accumulation=1, name="training"):
    options = popart.SessionOptions()
    options.hostAllReduce = True
    options.enableGradientAccumulation = accumulation > 1
    options.accumulationFactor = accumulation
    optimizer = popart.SGD({"defaultLearningRate": (lr, False)})
    made = popart.TrainingSession(
        networks.perceptron(MICRO_BATCH, seed=seed, dtype=dtype),
        popart.DataFlow(1, ["loss"]),
        "loss",
        optimizer,
        popdist.popart.getDevice(),
        userOptions=options,
        name=name,
    )
    made.prepareDevice()
    return made, optimizer, options


def step(made, accumulation=1, dtype=np.float64):
    x, target = networks.batches(1, accumulation, MICRO_BATCH, dtype=dtype)
    made.run(popart.PyStepIO({"x": x, "target": target}, made.initAnchorArrays()))


def attempts():
    hvd.init()
    index = hvd.rank()
    seen = {}
    for name, settings in {
        "weights": {"seed": index},
        "types": {"dtype": [np.float64, np.float32][index]},
        "learning rate": {"lr": 0.1 * (1 + index)},
        "accumulation": {"accumulation": 1 + index},
    }.items():
        made, optimizer, options = session(**settings, name=name)
        hvd.DistributedOptimizer(optimizer, made, options).insert_host_allreduce()
        made.weightsFromHost()
        try:
            step(made, settings.get("accumulation", 1), settings.get("dtype", np.float64))
        except popart.popart_exception as error:
            seen[name] = str(error)
        else:
            seen[name] = "trained"
    made, optimizer, options = session(seed=index, name="broadcast")
    hvd.DistributedOptimizer(optimizer, made, options).insert_host_allreduce()
    hvd.broadcast_weights(made, root_rank=1)
    made.weightsFromHost()
    step(made)
    made.weightsToHost()
    again, *_ = session(seed=index, name="broadcast by the session")
    again.broadcastWeights(1)
    return {**seen, "weight": made.fetched["w1"], "sent": again.host_tensors["w1"]}


def test_every_difference_is_named_on_every_instance_before_the_first_exchange():
    first, second = run_job(attempts)
    weight = first.pop("weight"), second.pop("weight")
    for sent in (first.pop("sent"), second.pop("sent")):
        np.testing.assert_array_equal(sent, networks.weights(1)["w1"])
    assert first == second
    assert all("[PD007]" in text for text in first.values())
    assert "values of w1" in first["weights"]
    assert "broadcast_weights(session)" in first["weights"]
    assert "DOUBLE [5, 8], number 2 on instance 0; FLOAT [5, 8]" in first["types"]
    assert "optimizer: " in first["learning rate"]
    assert "accumulation: 1 on instance 0; 2 on instance 1" in first["accumulation"]
    # Once broadcast, both train from the weights of the root.
    np.testing.assert_array_equal(*weight)
    assert np.abs(weight[0] - networks.weights(1)["w1"]).max() < 0.5


def sum_and_average():
    hvd.init()
    found = {}
    for name in ("Sum", "Average"):
        made, optimizer, options = session(name=name)
        op = getattr(hvd, name)
        hvd.DistributedOptimizer(optimizer, made, options, op=op).insert_host_allreduce()
        made.weightsFromHost()
        x, target = networks.batches(2, MICRO_BATCH)
        mine = {"x": x[hvd.rank()], "target": target[hvd.rank()]}
        made.run(popart.PyStepIO(mine, made.initAnchorArrays()))
        made.weightsToHost()
        found[name] = made.fetched["w1"]
    found["metric"] = hvd.allreduce(np.asarray([float(hvd.rank())]))
    half = np.asarray([1.5 + hvd.rank()], ml_dtypes.bfloat16)
    found["bfloat16"] = hvd.allreduce(half, op=hvd.Sum).astype(np.float32)
    found["gathered"] = hvd.allgather(np.asarray([[hvd.rank()]]))
    return found


def test_sum_and_average_are_of_the_gradients_of_both():
    first, second = run_job(sum_and_average)
    start = networks.weights()["w1"]
    for name in ("Sum", "Average"):
        np.testing.assert_array_equal(first[name], second[name])
    np.testing.assert_allclose(first["Sum"] - start, 2 * (first["Average"] - start), atol=1e-14)
    model = networks.TorchPerceptron()
    x, target = map(torch.from_numpy, networks.batches(2, MICRO_BATCH))
    (model(x[0], target[0]) + model(x[1], target[1])).backward()
    np.testing.assert_allclose(first["Sum"], start - 0.1 * model.w1.grad.numpy(), atol=1e-14)
    np.testing.assert_array_equal(first["metric"], [0.5])
    np.testing.assert_array_equal(first["bfloat16"], [4.0])
    np.testing.assert_array_equal(first["gathered"], [[0], [1]])


def leave_early():
    hvd.init()
    made, optimizer, options = session()
    hvd.DistributedOptimizer(optimizer, made, options).insert_host_allreduce()
    made.weightsFromHost()
    try:
        for _ in range(1 if hvd.rank() == 1 else 3):
            step(made)
    except BackendError as error:
        return {"seen": str(error)}
    return {"seen": "trained"}


def test_an_instance_that_stops_early_is_noticed_by_the_others():
    first, second = run_job(leave_early)
    assert second == {"seen": "trained"}
    assert "[PD021]" in first["seen"]


def unequal_data_sets():
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [4, 3]), "x")
    w = builder.addInitializedInputTensor(np.zeros([3, 2], np.float32), "w")
    builder.addOutputTensor(builder.aiOnnx.matmul([x, w]))
    model, index = builder.getModelProto(), popdist.getInstanceIndex()
    seen = {}
    for name, samples, value, settings in [
        ("lengths", 16 + 8 * index, 1, {}),
        ("orders", 16, 1, {"seed": index}),
        ("parts", 16, index, {}),
        ("equal", 16, 1, {}),
    ]:
        rows, classes = np.full([samples, 3], value, np.float32), np.arange(samples) % 2
        try:
            popart.train(model, rows, classes, batch_size=4, **settings)
        except popart.popart_exception as error:
            seen[name] = str(error)
        else:
            seen[name] = "trained"
    return seen


def test_data_sets_that_differ_are_found_before_an_instance_waits_for_the_other():
    first, second = run_job(unequal_data_sets)
    assert first == second
    assert "[PD007]" in first["lengths"]
    assert "samples: 16 on instance 0; 24 on instance 1" in first["lengths"]
    assert "give every instance the whole data set" in first["lengths"]
    assert "seed: 0 on instance 0; 1 on instance 1" in first["orders"]
    assert "values of x" in first["parts"]
    assert "values of labels" not in first["parts"]
    assert "give every instance the whole data set" in first["parts"]
    assert first["equal"] == "trained"
