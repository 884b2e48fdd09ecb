"""Sessions of the ONNX adapter on CUDA, where the installed ONNX Runtime has it."""

import numpy as np
import onnxruntime
import pytest

import popdist_onnx as popart
from tests.distributed.jobs import run_job
from tests.popdist_onnx import networks

pytestmark = pytest.mark.skipif(
    "CUDAExecutionProvider" not in onnxruntime.get_available_providers(),
    reason="ONNX Runtime is a build for CPUs",
)
ROWS, BATCHES, REPLICAS = 4, 3, 2


def trained(kind="CUDA"):
    """Weights after training with two replicas."""
    options = popart.SessionOptions()
    options.enableReplicatedGraphs = True
    options.accumulationAndReplicationReductionType = popart.ReductionType.Mean
    options.replicatedGraphCount = REPLICAS
    manager = popart.DeviceManager()
    device = (
        manager.createCpuDevice() if kind == "CPU" else manager.acquireAvailableDevice(REPLICAS)
    )
    assert device.runs_on_processor is (kind == "CPU")
    session = popart.TrainingSession(
        networks.perceptron(ROWS, dtype=np.float32),
        popart.DataFlow(BATCHES, {"loss": popart.AnchorReturnType("All")}),
        "loss",
        popart.SGD({"defaultLearningRate": (0.1, False), "defaultMomentum": (0.9, True)}),
        device,
        userOptions=options,
    )
    session.prepareDevice()
    session.weightsFromHost()
    x, target = networks.batches(BATCHES, REPLICAS, ROWS, dtype=np.float32)
    anchors = session.initAnchorArrays()
    for _ in range(3):
        session.run(popart.PyStepIO({"x": x, "target": target}, anchors))
    session.weightsToHost()
    found = {name: np.empty_like(array) for name, array in session.host_tensors.items()}
    session.readWeights(popart.PyWeightsIO(found))
    return {name: found[name] for name in networks.weights()}


def test_a_session_on_cuda_trains_as_one_on_the_processor():
    (found,) = run_job(trained, instances=1)
    (expected,) = run_job(trained, instances=1, kind="CPU")
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-6, err_msg=name)
