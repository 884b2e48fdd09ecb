"""When the threads of a session wait for work without sleeping."""

import numpy as np
import pytest

import popdist_onnx as popart
from popdist_onnx.runtime import compiled
from popdist_onnx.runtime.compiled import may_spin


@pytest.mark.parametrize(
    ("threads", "alone", "policy", "expected"),
    [
        (2, True, None, True),
        (1, True, None, False),
        (1, True, "active", False),
        (2, False, None, False),
        (3, True, None, False),
        (2, True, "passive", False),
        (2, True, " PASSIVE", False),
        (2, False, "active", True),
        (3, True, "ACTIVE", True),
        (2, True, "of another kind", True),
    ],
)
def test_threads_spin_where_nobody_else_needs_their_processors(
    monkeypatch, threads, alone, policy, expected
):
    monkeypatch.setattr(compiled.os, "sched_getaffinity", lambda _process: {0, 5})
    environment = {} if policy is None else {"OMP_WAIT_POLICY": policy}
    assert may_spin(threads, alone=alone, environment=environment) is expected


@pytest.mark.parametrize(("size", "expected"), [("1", "1"), ("2", "0")])
def test_a_session_tells_onnxruntime_whether_to_spin(monkeypatch, size, expected):
    made = []

    def remember(model, options, **others):
        made.append(options)
        return session(model, options, **others)

    session = compiled.ort.InferenceSession
    monkeypatch.setattr(compiled.ort, "InferenceSession", remember)
    monkeypatch.setattr(compiled.os, "sched_getaffinity", lambda _process: {0, 5})
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", size)
    builder = popart.Builder(opsets={"ai.onnx": 10})
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [2, 2]))
    weight = builder.addInitializedInputTensor(np.eye(2, dtype=np.float32))
    y = builder.aiOnnx.matmul([x, weight])
    flow = popart.DataFlow(1, {y: popart.AnchorReturnType("All")})
    device = popart.DeviceManager().createCpuDevice()
    popart.InferenceSession(builder.getModelProto(), flow, device).prepareDevice()
    (options,) = made
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == expected
    assert options.get_session_config_entry("session.force_spinning_stop") == "1"
