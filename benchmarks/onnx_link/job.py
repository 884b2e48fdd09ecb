"""What each of the two ranks measures: steps with the exchange, steps without, and the exchange.

The floor is the same step, whose gradients a thread sends to the other rank as they are completed
while another thread receives the other's; nothing is added or agreed upon. The limit is the same
step beside an exchange of as many bytes through Horovod that starts with it and waits for nothing.
"""

from __future__ import annotations

import math
import queue
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from benchmarks.sampling import interleave

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from popdist_onnx import TrainingSession
    from popdist_onnx.runtime.collectives import Allreduce

STEP, COMPUTE, EXCHANGE = "step", "compute", "exchange"
FLOOR, SENDING, LIMIT = "floor", "sending", "limit"

_WARM_UP = 2
_RATE = 0.001


def link(*, name: str, path: str, repetitions: int, address: str) -> dict[str, list[float]]:
    """Times all of them on this rank, in turns.

    Args:
        name: The model.
        path: Its ONNX file.
        repetitions: Samples of each.
        address: Of the first host.

    Returns:
        Seconds of a step whose gradients are summed over the link, of the same step whose gradients
        stay where they are, and of the exchange of all gradients alone; of a step beside threads
        that only send and receive, and of those alone; of a step beside an exchange that waits for
        nothing.
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
    horovod: Any = __import__("horovod.torch").torch
    wire = Wire(_connected(address, horovod), sum(_bytes(spec) for _, spec in alone.gradients))
    for handle in alone.getHostReduceStreamIds():
        stores = handle in {copy.store for copy, _ in alone.gradients}
        alone.connectStreamToCallback(handle, wire.send if stores else wire.wait, 0)
    compute = _step(alone, data)
    exchange = _exchange(alone)
    samplers = {
        STEP: _step(summed, data),
        COMPUTE: compute,
        EXCHANGE: lambda: _timed(exchange, lambda: None),
        LIMIT: lambda: _timed(exchange, compute),
        FLOOR: wire.beside(compute),
        SENDING: wire.beside(_sending(wire, alone)),
    }

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


class Wire:
    """A connection on which a thread only sends while another one only receives.

    Args:
        connection: The connection to the other rank.
        expected: Bytes that the other rank sends for each sample.
    """

    def __init__(self, connection: socket.socket, expected: int) -> None:
        self._connection = connection
        self._memory = memoryview(bytearray(max(expected, 1)))
        self._expected = expected
        self._on = False
        self._given: queue.Queue[memoryview] = queue.Queue()
        self._open = queue.Queue[None]()
        self._received = threading.Event()
        for work in (self._sends, self._receives):
            threading.Thread(target=work, daemon=True).start()

    def send(self, gradient: np.ndarray[Any, Any]) -> None:
        """Gives a gradient to the thread that sends, in samples that send.

        Args:
            gradient: The gradient, whose memory stays as it is until `wait` returns.
        """
        if self._on:
            self._given.put(gradient.reshape(-1).view("u1").data)

    def wait(self, gradient: np.ndarray[Any, Any] | None = None) -> None:
        """Waits until everything of this sample was sent and received.

        Args:
            gradient: The gradient, which stays as it is.
        """
        del gradient
        if self._on:
            self._given.join()
            self._received.wait()

    def beside(self, sample: Callable[[], float]) -> Callable[[], float]:
        """A sample that sends.

        Args:
            sample: A sample that calls `send` and `wait`.

        Returns:
            The same with the threads at work.
        """

        def sending() -> float:
            self._on = True
            self._received.clear()
            self._open.put(None)
            try:
                return sample()
            finally:
                self._on = False

        return sending

    def _sends(self) -> None:
        while True:
            self._connection.sendall(self._given.get())
            self._given.task_done()

    def _receives(self) -> None:
        while True:
            self._open.get()
            missing = self._expected
            while missing:
                missing -= self._connection.recv_into(self._memory, missing)
            self._received.set()


def _connected(address: str, horovod: Any) -> socket.socket:
    """A connection between the two ranks."""
    import torch

    first = horovod.rank() == 0
    with socket.socket() as server:
        if first:
            server.bind((address, 0))
            server.listen()
        port = torch.tensor([server.getsockname()[1] if first else 0])
        port = horovod.broadcast(port, root_rank=0, name="port")
        if first:
            return server.accept()[0]
    return socket.create_connection((address, int(port)))


def _bytes(spec: Any) -> int:
    return math.prod(spec.shape or ()) * int(spec.dtype.itemsize)


def _sending(wire: Wire, session: TrainingSession) -> Callable[[], float]:
    """All gradients at once."""
    import numpy as np

    arrays = [np.zeros(spec.shape or (), spec.dtype.numpy()) for _, spec in session.gradients]

    def sample() -> float:
        started = time.perf_counter()
        for array in arrays:
            wire.send(array)
        wire.wait()
        return time.perf_counter() - started

    return sample


def _step(session: TrainingSession, data: dict[str, np.ndarray[Any, Any]]) -> Callable[[], float]:
    import popdist_onnx as popart

    anchors = session.initAnchorArrays()

    def sample() -> float:
        started = time.perf_counter()
        session.run(popart.PyStepIO(data, anchors))
        return time.perf_counter() - started

    return sample


def _exchange(session: TrainingSession) -> Allreduce:
    import horovod.torch

    from popdist_onnx.runtime.collectives import Allreduce

    return Allreduce(
        session.gradients, horovod.torch, average=False, facts=dict, name="exchange alone"
    )


def _timed(exchange: Allreduce, meanwhile: Callable[[], object]) -> float:
    """Seconds of an exchange of all gradients at once, and of what runs meanwhile."""
    started = time.perf_counter()
    exchange.begin()
    for index in range(len(exchange.memory)):
        exchange.ready(index)
    meanwhile()
    exchange.finish()
    return time.perf_counter() - started
