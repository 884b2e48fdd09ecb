"""PopART's own operators in a job: two instances train what one trains on the global batch."""

import numpy as np

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


def train(x, label, *, shared):
    proto, loss = model(x.shape[1])
    options = popart.SessionOptions()
    options.hostAllReduce = shared
    optimizer = popart.SGD({"defaultLearningRate": (0.05, False)})
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
    found = {name: np.empty(shape, np.float32) for name, shape in WEIGHTS.items()}
    session.readWeights(popart.PyWeightsIO(found))
    return found


def instance():
    import popdist_onnx.horovod as hvd

    hvd.init()
    mine = slice(hvd.rank() * BATCH // hvd.size(), (hvd.rank() + 1) * BATCH // hvd.size())
    x, label = data()
    return train(x[:, mine], label[:, mine], shared=True)


def test_two_instances_train_what_one_trains_on_the_global_batch():
    first, second = run_job(instance)
    expected = train(*data(), shared=False)
    for name, reference in expected.items():
        np.testing.assert_array_equal(first[name], second[name])
        np.testing.assert_allclose(first[name], reference, rtol=1e-5, atol=1e-6)
