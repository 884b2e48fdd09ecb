"""What runs in processes of its own: steps, on one rank and on several, and peak memory."""

from __future__ import annotations

import os
import resource
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
ONNX, TORCH, HOROVOD = "popdist_onnx", "torch eager", "horovod.torch"
COMPILED, ORT_TRAINING = "torch.compile", "onnxruntime-training"
PRODUCTS = "matrix products alone"

_WARM_UP = 3
RATE = 0.01
"""The learning rate of all contenders."""


def ranks(*, name: str, path: str, repetitions: int, contender: str) -> list[float]:
    """Times a data-parallel step on this rank.

    Args:
        name: The model.
        path: Its ONNX file.
        repetitions: Samples.
        contender: ``popdist_onnx`` or ``horovod.torch``.

    Returns:
        Seconds of each step.
    """
    step = (
        onnx_step(path, name, shared=True) if contender == ONNX else torch_step(name, shared=True)
    )
    for _ in range(_WARM_UP):
        step()
    return [_seconds(step) for _ in range(repetitions)]


def memory(*, name: str, path: str, contender: str) -> dict[str, int]:
    """The largest resident memory of a process that trains for some steps.

    Args:
        name: The model.
        path: Its ONNX file.
        contender: ``popdist_onnx`` or ``torch eager``.

    Returns:
        Bytes before the model was there, with what is imported already, and at most.
    """
    if contender == ONNX:
        data = dict(_arrays(path))
        import popdist_onnx.session.training  # noqa: F401 - counts as imported

        before = _resident()
        step = onnx_step(path, name, data=data)
    else:
        import torch  # noqa: F401 - as above

        before = _resident()
        step = torch_step(name)
    for _ in range(2 * _WARM_UP):
        step()
    return {"before": before, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def compile_time(*, path: str) -> float:
    """Seconds from a file to a session that could run.

    Args:
        path: The ONNX file.

    Returns:
        Seconds.
    """
    import popdist_onnx.session.training  # noqa: F401 - importing is no compiling

    started = time.perf_counter()
    _session(path, shared=False)
    return time.perf_counter() - started


def onnx_step(
    path: str,
    name: str,
    *,
    shared: bool = False,
    data: dict[str, np.ndarray[Any, Any]] | None = None,
) -> Callable[[], float]:
    """A training step by popdist_onnx.

    Args:
        path: The ONNX file.
        name: The model, whose data are taken where none are given.
        shared: Whether gradients are summed over the ranks of the job.
        data: The inputs.

    Returns:
        A function that takes one step and returns the loss.
    """
    import popdist_onnx as popart

    session, loss = _session(path, shared=shared)
    anchors = session.initAnchorArrays()
    feeds = data or _data_of(name)
    session.weightsFromHost()

    def step() -> float:
        session.run(popart.PyStepIO(feeds, anchors))
        return float(anchors[loss])

    return step


def torch_step(
    name: str, *, shared: bool = False, compiled: bool = False, threads: int = 1
) -> Callable[[], float]:
    """A training step in torch, with its fused update.

    Args:
        name: The model.
        shared: Whether gradients are summed by Horovod's optimizer.
        compiled: Whether the network is compiled, and not eager.
        threads: Threads of one operator.

    Returns:
        A function that takes one step and returns the loss.
    """
    import torch

    from benchmarks.onnx_training.models import build

    torch.set_num_threads(threads)
    network, inputs, labels = build(name)
    forward: Any = torch.compile(network) if compiled else network
    optimizer: Any = torch.optim.SGD(network.parameters(), lr=RATE, fused=not shared)
    if shared:
        import horovod.torch as hvd

        hvd.init()
        optimizer = hvd.DistributedOptimizer(
            optimizer, named_parameters=network.named_parameters(), op=hvd.Sum
        )

    def step() -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(forward(inputs), labels)
        torch.autograd.backward(loss)
        optimizer.step()
        return float(loss.item())

    return step


def _session(path: str, *, shared: bool) -> tuple[Any, str]:
    import popdist.popart
    import popdist_onnx as popart

    options = popart.SessionOptions()
    if shared:
        popdist.popart.configureSessionOptions(options)
    session = popart.TrainingSession(
        path,
        popart.DataFlow(1, {"loss": popart.AnchorReturnType("All")}),
        "loss",
        popart.SGD({"defaultLearningRate": (RATE, True)}),
        popart.DeviceManager().createCpuDevice(),
        userOptions=options,
    )
    session.prepareDevice()
    return session, "loss"


def _data_of(name: str) -> dict[str, np.ndarray[Any, Any]]:
    from benchmarks.onnx_training.models import build

    _, inputs, labels = build(name)
    return {"x": inputs.numpy(), "labels": labels.numpy()}


def _arrays(path: str) -> dict[str, np.ndarray[Any, Any]]:
    """Inputs of the file's shapes, made without torch."""
    import numpy as np
    import onnx

    found = {}
    for value in onnx.load(path).graph.input:
        kind = value.type.tensor_type
        shape = [dim.dim_value for dim in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        found[value.name] = np.random.default_rng(0).integers(0, 10, shape).astype(dtype)
    return found


def _seconds(step: Callable[[], float]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as pages:  # noqa: PTH123 - no file of ours
        return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
