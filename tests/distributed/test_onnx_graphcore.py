"""PopART's own operators in a job: two instances train what one trains on the global batch.

The same launch trains determinants, and sums over diagonals.
"""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import popdist_onnx as popart
from tests.distributed.jobs import run_job

STEPS, BATCH = 4, 8
WEIGHTS = {"w": (6, 8), "scale": (8,), "bias": (8,), "v": (8, 3)}


def model(batch):
    builder = popart.Builder()
    rng = np.random.default_rng(1)
    x = builder.addInputTensor("FLOAT", [batch, 6], "x")
    label = builder.addInputTensor("INT32", [batch], "label")
    w, scale, bias, v = (
        builder.addInitializedInputTensor(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in WEIGHTS.items()
    )
    ops, own = builder.aiOnnx, builder.aiGraphcore
    h = own.groupnormalization([ops.matmul([x, w]), scale, bias], num_groups=1)[0]
    h = own.gelu([h])
    h = own.reverse([own.scaledadd([h, own.detach([h])], scale1=0.5)], dimensions=[1])
    probabilities = ops.softmax([ops.matmul([h, v])])
    loss = own.nllloss([probabilities, label], popart.ReductionType.Sum, ignoreIndex=-1)
    return builder.getModelProto(), loss


def data():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((STEPS, BATCH, 6)).astype(np.float32)
    return x, rng.integers(-1, 3, (STEPS, BATCH)).astype(np.int32)


MATRIX_RATE = 1e-4
MATRICES = {"turn": (3, 3), "shift": (3, 3), "factors": (3,)}


def matrix_model(batch):
    """``sum((det(h + shift) + sum_ij h_ii factors_i h_ij - label)^2)``, h = x turn."""
    rng = np.random.default_rng(3)
    stored = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in MATRICES.items()
    ]
    nodes = [
        helper.make_node("Einsum", ["x", "turn"], ["h"], equation="bij,jk->bik"),
        helper.make_node("Add", ["h", "shift"], ["moved"]),
        helper.make_node("Det", ["moved"], ["det"]),
        helper.make_node("Einsum", ["h", "factors", "h"], ["line"], equation="bii,i,bij->b"),
        helper.make_node("Add", ["det", "line"], ["y"]),
        helper.make_node("Cast", ["label"], ["wanted"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["y", "wanted"], ["error"]),
        helper.make_node("Mul", ["error", "error"], ["square"]),
        helper.make_node("ReduceSum", ["square"], ["loss"], keepdims=0),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 3]),
        helper.make_tensor_value_info("label", TensorProto.INT32, [batch]),
    ]
    loss = [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])]
    graph = helper.make_graph(nodes, "matrices", inputs, loss, stored)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), "loss"


def matrix_data():
    _, label = data()
    x = np.random.default_rng(4).standard_normal((STEPS, BATCH, 3, 3))
    return x.astype(np.float32), label


def matrices_by_torch(x, label, rate):
    """The weights after plain steps on the global batch, in double precision."""
    stored = matrix_model(1)[0].graph.initializer
    weights = [
        torch.tensor(numpy_helper.to_array(one).astype(np.float64), requires_grad=True)
        for one in stored
    ]
    turn, shift, factors = weights
    optimizer = torch.optim.SGD(weights, lr=rate)
    for one, wanted in zip(x, label, strict=True):
        h = torch.tensor(one.astype(np.float64)) @ turn
        diagonals = torch.diagonal(h, dim1=1, dim2=2)
        line = (diagonals * factors * h.sum(2)).sum(1)
        optimizer.zero_grad()
        ((torch.linalg.det(h + shift) + line - torch.tensor(wanted)) ** 2).sum().backward()
        optimizer.step()
    return dict(zip(MATRICES, (one.detach().numpy() for one in weights), strict=True))


def train(x, label, *, shared, made=model, weights=WEIGHTS, rate=0.05):
    proto, loss = made(x.shape[1])
    options = popart.SessionOptions()
    options.hostAllReduce = shared
    optimizer = popart.SGD({"defaultLearningRate": (rate, False)})
    flow = popart.DataFlow(STEPS, [loss])
    device = popart.DeviceManager().createCpuDevice()
    session = popart.TrainingSession(proto, flow, loss, optimizer, device, userOptions=options)
    session.prepareDevice()
    anchors = session.initAnchorArrays()
    if shared:
        import popdist_onnx.horovod as hvd

        hvd.DistributedOptimizer(optimizer, session, options).insert_host_allreduce()
        hvd.broadcast_weights(session)
    session.weightsFromHost()
    inputs = {"x": np.ascontiguousarray(x), "label": np.ascontiguousarray(label)}
    session.run(popart.PyStepIO(inputs, anchors))
    session.weightsToHost()
    found = {name: np.empty(shape, np.float32) for name, shape in weights.items()}
    session.readWeights(popart.PyWeightsIO(found))
    return found


def instance():
    import popdist_onnx.horovod as hvd

    hvd.init()
    mine = slice(hvd.rank() * BATCH // hvd.size(), (hvd.rank() + 1) * BATCH // hvd.size())
    x, label = data()
    found = train(x[:, mine], label[:, mine], shared=True)
    x, label = matrix_data()
    x, label = x[:, mine], label[:, mine]
    return found | train(
        x, label, shared=True, made=matrix_model, weights=MATRICES, rate=MATRIX_RATE
    )


def test_two_instances_train_what_one_trains_on_the_global_batch():
    first, second = run_job(instance)
    expected = train(*data(), shared=False) | matrices_by_torch(*matrix_data(), MATRIX_RATE)
    start = matrix_model(1)[0].graph.initializer
    assert all(
        np.abs(expected[one.name] - numpy_helper.to_array(one)).max() > 0.01 for one in start
    )
    for name, reference in expected.items():
        np.testing.assert_array_equal(first[name], second[name])
        np.testing.assert_allclose(first[name], reference, rtol=1e-5, atol=1e-6)


def summing_model(group=None):
    """A loss on each instance that depends on what the others have computed."""
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [2, 3], "x")
    w = builder.addInitializedInputTensor(
        np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), "w"
    )
    ops, own = builder.aiOnnx, builder.aiGraphcore
    h = ops.tanh([ops.matmul([x, w])])
    total = own.replicatedallreduce([h], **({} if group is None else {"commGroup": group}))
    again = own.replicatedallreduce([ops.mul([total, h])])
    loss = own.identityloss([ops.mul([again, x_weights(builder)])], popart.ReductionType.Sum)
    for one in (total, again, loss):
        builder.addOutputTensor(one)
    return builder.getModelProto(), total, again, loss


def x_weights(builder):
    return builder.aiOnnx.constant(np.cos(np.arange(8, dtype=np.float32)).reshape(2, 4))


def summing_instance(accumulation, group=None):
    from popdist.popart import configureSessionOptions
    from popdist.popdist_core import getInstanceIndex

    proto, total, again, loss = summing_model(group)
    options = popart.SessionOptions()
    configureSessionOptions(options)
    options.enableGradientAccumulation = accumulation > 1
    options.accumulationFactor = accumulation
    flow = popart.DataFlow(2, [total, again, loss, "Gradient___w"])
    device = popart.DeviceManager().createCpuDevice()
    optimizer = popart.SGD({"defaultLearningRate": (0.01, False)})
    session = popart.TrainingSession(proto, flow, loss, optimizer, device, userOptions=options)
    session.prepareDevice()
    anchors = session.initAnchorArrays()
    session.weightsFromHost()
    x = summed_data(getInstanceIndex(), accumulation)
    session.run(popart.PyStepIO({"x": x}, anchors))
    session.weightsToHost()
    found = {"w": np.empty((3, 4), np.float32)}
    session.readWeights(popart.PyWeightsIO(found))
    inference = popart.InferenceSession(
        proto, popart.DataFlow(1, [again]), device, userOptions=inference_options()
    )
    inference.prepareDevice()
    made = inference.initAnchorArrays()
    inference.run(popart.PyStepIO({"x": x.reshape(-1, 2, 3)[0].copy()}, made))
    return {**found, "total": anchors[total], "again": anchors[again], "inferred": made[again]}


def inference_options():
    from popdist.popart import configureSessionOptions

    options = popart.SessionOptions()
    configureSessionOptions(options)
    return options


def summed_data(rank, accumulation):
    rng = np.random.default_rng(rank)
    return rng.standard_normal((2, accumulation, 2, 3)).astype(np.float32)


@pytest.mark.parametrize(("accumulation", "group"), [(1, None), (2, [1, 1])])
def test_a_sum_over_instances_inside_the_graph(accumulation, group):
    """Two instances with different data train as torch does with all of it in one process."""
    found = run_job(summing_instance, accumulation=accumulation, group=group)
    w = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4).requires_grad_()
    factors = torch.arange(8, dtype=torch.float64).reshape(2, 4).cos()
    data = [torch.tensor(summed_data(rank, accumulation)).double() for rank in range(2)]
    firsts = []
    for step in range(2):
        losses = []
        for micro in range(accumulation):
            h = [(x[step, micro] @ w).tanh() for x in data]
            total = h if group else [h[0] + h[1]] * 2
            again = total[0] * h[0] + total[1] * h[1]
            firsts.append((total, again))
            # Each instance has a loss of its own; the update takes the gradient of their sum.
            losses += [(again * factors).sum()] * 2
        (gradient,) = torch.autograd.grad(sum(losses), [w])
        w = (w - 0.01 * gradient).detach().requires_grad_()
    for rank, one in enumerate(found):
        np.testing.assert_allclose(one["w"], w.detach(), rtol=2e-5, atol=2e-6)
        totals = np.stack([total[rank].detach() for total, _ in firsts]).reshape(one["total"].shape)
        np.testing.assert_allclose(one["total"], totals, rtol=1e-5, atol=1e-6)
        sums = np.stack([again.detach() for _, again in firsts]).reshape(one["again"].shape)
        np.testing.assert_allclose(one["again"], sums, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            one["inferred"].reshape(2, 4), firsts[0][1].detach(), rtol=1e-5, atol=1e-6
        )
    np.testing.assert_array_equal(found[0]["w"], found[1]["w"])
