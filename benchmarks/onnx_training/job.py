"""What runs in processes of its own: steps that take turns, steps on several ranks, peak memory."""

from __future__ import annotations

import os
import resource
import time
from typing import TYPE_CHECKING, Any

from benchmarks.sampling import interleave

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

_WARM_UP = 3
_RATE = 0.01


def steps(*, name: str, path: str, repetitions: int) -> dict[str, list[float]]:
    """Times a training step of both contenders, in turns.

    Args:
        name: The model.
        path: Its ONNX file.
        repetitions: Samples of each.

    Returns:
        Seconds by contender; the contenders' losses after the same number of steps must agree.
    """
    contenders = {"popdist_onnx": onnx_step(path, name), "torch eager": torch_step(name)}
    samplers = {key: _timed(step) for key, step in contenders.items()}
    interleave(samplers, _WARM_UP)
    _require_agreement(contenders)
    return interleave(samplers, repetitions)


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
        onnx_step(path, name, shared=True)
        if contender == "popdist_onnx"
        else torch_step(name, shared=True)
    )
    timed = _timed(step)
    for _ in range(_WARM_UP):
        timed()
    return [timed() for _ in range(repetitions)]


def memory(*, name: str, path: str, contender: str) -> dict[str, int]:
    """The largest resident memory of a process that trains for some steps.

    Args:
        name: The model.
        path: Its ONNX file.
        contender: ``popdist_onnx`` or ``torch eager``.

    Returns:
        Bytes before the model was there, with what is imported already, and at most.
    """
    if contender == "popdist_onnx":
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


def torch_step(name: str, *, shared: bool = False) -> Callable[[], float]:
    """A training step in torch eager.

    Args:
        name: The model.
        shared: Whether gradients are summed by Horovod's optimizer.

    Returns:
        A function that takes one step and returns the loss.
    """
    import torch

    from benchmarks.onnx_training.models import build

    torch.set_num_threads(1)
    network, inputs, labels = build(name)
    optimizer: Any = torch.optim.SGD(network.parameters(), lr=_RATE)
    if shared:
        import horovod.torch as hvd

        hvd.init()
        optimizer = hvd.DistributedOptimizer(
            optimizer, named_parameters=network.named_parameters(), op=hvd.Sum
        )

    def step() -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(inputs), labels)
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
        popart.SGD({"defaultLearningRate": (_RATE, True)}),
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


def _timed(step: Callable[[], float]) -> Callable[[], float]:
    def sample() -> float:
        started = time.perf_counter()
        step()
        return time.perf_counter() - started

    return sample


def _require_agreement(contenders: dict[str, Callable[[], float]]) -> None:
    """The speed of a wrong step is of no interest."""
    losses = [step() for step in contenders.values()]
    if max(losses) - min(losses) > 1e-3 * max(losses):
        raise RuntimeError(f"the contenders' losses differ: {dict(zip(contenders, losses))}")  # noqa: B905 - the same length by construction


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as pages:  # noqa: PTH123 - no file of ours
        return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
