"""What each of the two ranks measures: steps with the exchange, steps without, and the exchange."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from benchmarks.sampling import interleave

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from popdist_onnx import TrainingSession

STEP, COMPUTE, EXCHANGE = "step", "compute", "exchange"

_WARM_UP = 2
_RATE = 0.001


def link(*, name: str, path: str, repetitions: int) -> dict[str, list[float]]:
    """Times the three on this rank, in turns.

    Args:
        name: The model.
        path: Its ONNX file.
        repetitions: Samples of each.

    Returns:
        Seconds of a step whose gradients are summed over the link, of the same step whose gradients
        stay where they are, and of the exchange of all gradients alone.
    """
    import torch

    import popdist_onnx.horovod as hvd
    from benchmarks.onnx_training.models import build

    hvd.init()
    _, inputs, labels = build(name)
    data = {"x": inputs.numpy(), "labels": labels.numpy()}
    summed, options, optimizer = _session(path, "with exchange")
    hvd.DistributedOptimizer(optimizer, summed, options).insert_host_allreduce()
    alone, _, _ = _session(path, "without exchange")
    for handle in alone.getHostReduceStreamIds():
        alone.connectStreamToCallback(handle, _stay, 0)
    samplers = {
        STEP: _step(summed, data),
        COMPUTE: _step(alone, data),
        EXCHANGE: _exchange(alone),
    }
    horovod: Any = __import__("horovod.torch").torch

    def together(sample: Callable[[], float]) -> Callable[[], float]:
        def timed() -> float:
            # Ranks start together: waiting for the other one is no part of a sample.
            horovod.allreduce(torch.zeros(1), name="together")
            return sample()

        return timed

    taken = {key: together(sample) for key, sample in samplers.items()}
    interleave(taken, _WARM_UP)
    return interleave(taken, repetitions)


def _session(path: str, name: str) -> tuple[TrainingSession, Any, Any]:
    import popdist_onnx as popart

    options = popart.SessionOptions()
    options.hostAllReduce = True
    optimizer = popart.SGD({"defaultLearningRate": (_RATE, True)})
    session = popart.TrainingSession(
        path,
        popart.DataFlow(1, {"loss": popart.AnchorReturnType("All")}),
        "loss",
        optimizer,
        popart.DeviceManager().createCpuDevice(),
        userOptions=options,
        name=name,
    )
    session.prepareDevice()
    session.weightsFromHost()
    return session, options, optimizer


def _stay(gradient: np.ndarray[Any, Any]) -> None:
    """In the place of an exchange: the gradient stays as it is."""


def _step(session: TrainingSession, data: dict[str, np.ndarray[Any, Any]]) -> Callable[[], float]:
    import popdist_onnx as popart

    anchors = session.initAnchorArrays()

    def sample() -> float:
        started = time.perf_counter()
        session.run(popart.PyStepIO(data, anchors))
        return time.perf_counter() - started

    return sample


def _exchange(session: TrainingSession) -> Callable[[], float]:
    import horovod.torch

    from popdist_onnx.runtime.collectives import Allreduce

    reduce = Allreduce(
        session.gradients, horovod.torch, average=False, facts=dict, name="exchange alone"
    )

    def sample() -> float:
        started = time.perf_counter()
        reduce.begin()
        for index in range(len(session.gradients)):
            reduce.ready(index)
        reduce.finish()
        return time.perf_counter() - started

    return sample
