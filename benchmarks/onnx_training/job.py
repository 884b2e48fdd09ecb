"""What runs in processes of its own: steps that take turns, steps on several ranks, peak memory."""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.sampling import interleave

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from typing_extensions import Self

ONNX, TORCH, HOROVOD = "popdist_onnx", "torch eager", "horovod.torch"
COMPILED, ORT_TRAINING = "torch.compile", "onnxruntime-training"
PRODUCTS = "matrix products alone"

_WARM_UP = 3
_RATE = 0.01
_DIFFERENCE = 1e-5
"""By how much of itself the contenders' losses may differ."""


def steps(
    *, name: str, path: str, repetitions: int, threads: int, peer_python: str | None, products: bool
) -> dict[str, list[float]]:
    """Times a training step of all contenders, in turns.

    Args:
        name: The model.
        path: Its ONNX file.
        repetitions: Samples of each.
        threads: Threads of each.
        peer_python: The Python of the environment with onnxruntime-training, where there is one.
        products: Whether the step's matrix products alone take part.

    Returns:
        Seconds by contender; the contenders' losses after the same number of steps must agree.
    """
    from benchmarks.onnx_training.products import products_of, products_step

    with ExitStack() as stack:
        contenders: dict[str, Callable[[], tuple[float, float]]] = {
            ONNX: _timed(onnx_step(path, name)),
            TORCH: _timed(torch_step(name, threads=threads)),
            COMPILED: _timed(torch_step(name, threads=threads, compiled=True)),
        }
        if peer_python is not None:
            peer = stack.enter_context(_Peer(peer_python, path, name, threads))
            contenders[ORT_TRAINING] = peer.step
        for _ in range(_WARM_UP):
            losses = {key: step()[1] for key, step in contenders.items()}
            _require_agreement(losses)
        if products:
            contenders[PRODUCTS] = _timed(products_step(products_of(path, _RATE), threads))
            contenders[PRODUCTS]()
        samplers = {key: _seconds(step) for key, step in contenders.items()}
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
        onnx_step(path, name, shared=True) if contender == ONNX else torch_step(name, shared=True)
    )
    timed = _seconds(_timed(step))
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
    optimizer: Any = torch.optim.SGD(network.parameters(), lr=_RATE, fused=not shared)
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


class _Peer:
    """onnxruntime-training in a process and an environment of its own, as a context.

    Args:
        python: The environment's Python.
        path: The ONNX file.
        name: The model.
        threads: Threads of one operator.
    """

    def __init__(self, python: str, path: str, name: str, threads: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="popdist-bench-")
        data = Path(self._folder.name) / "data.npz"
        _save(data, name)
        program = Path(__file__).with_name("ort_training.py")
        self._process = subprocess.Popen(
            [python, "-I", str(program), path, str(data), str(threads), str(_RATE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self._folder.cleanup()

    def step(self) -> tuple[float, float]:
        """Takes one step.

        Returns:
            Seconds, and the loss.

        Raises:
            RuntimeError: The process has ended.
        """
        assert self._process.stdin is not None  # noqa: S101 - pipes, as made above
        assert self._process.stdout is not None  # noqa: S101 - as above
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().split()
        if len(answer) != 2:  # noqa: PLR2004 - seconds and loss
            raise RuntimeError(f"onnxruntime-training ended with {self._process.wait()}")
        return float(answer[0]), float(answer[1])


def _save(path: Path, name: str) -> None:
    import numpy as np

    np.savez(path, **_data_of(name))


def _timed(step: Callable[[], float]) -> Callable[[], tuple[float, float]]:
    """A step that returns its seconds and its loss."""

    def sample() -> tuple[float, float]:
        started = time.perf_counter()
        loss = step()
        return time.perf_counter() - started, loss

    return sample


def _seconds(step: Callable[[], tuple[float, float]]) -> Callable[[], float]:
    return lambda: step()[0]


def _require_agreement(losses: dict[str, float]) -> None:
    """The speed of a wrong step is of no interest."""
    if max(losses.values()) - min(losses.values()) > _DIFFERENCE * max(losses.values()):
        raise RuntimeError(f"the contenders' losses differ: {losses}")


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as pages:  # noqa: PTH123 - no file of ours
        return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
