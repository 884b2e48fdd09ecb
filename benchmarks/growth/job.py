"""What a rank does: compute, exchange, and both one after the other, each beside a barrier."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.exchange.cases import ELEMENT_BYTES
from benchmarks.exchange.contenders import Buffers, Mpi, Popdist
from benchmarks.sampling import interleave

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_WARM_UP = 2
_SIDE = 1024
_PRODUCTS = 3
_MESSAGES = 16


def measure(*, sizes: Sequence[int], repetitions: int) -> dict[str, list[float]]:
    """Times this rank's part of a step.

    Args:
        sizes: Bytes of the exchanges; the last is that of the step.
        repetitions: Samples of each.

    Returns:
        Seconds of ``compute``, of ``step`` and, with several ranks, of the exchange of each size,
        by its bytes as text, and of the first of them by MPI alone, as ``message``.
    """
    from mpi4py import MPI

    torch.set_num_threads(1)
    world = MPI.COMM_WORLD
    calls: dict[str, Callable[[], None]] = {"compute": _compute()}
    seconds: dict[str, list[float]] = {}
    if world.size > 1:
        # Before Horovod's thread runs, which wakes up all the time and would be a part of it.
        message = Mpi(MPI).prepare(_buffers(sizes[0]))
        many = _sampler(world, lambda: [message() for _ in range(_MESSAGES)])
        seconds["message"] = [many() / _MESSAGES for _ in range(_WARM_UP + repetitions)]
        popdist = Popdist()
        for size in sizes:
            calls[str(size)] = popdist.prepare(_buffers(size))
    compute, exchange = calls["compute"], calls.get(str(sizes[-1]))

    def step() -> None:
        compute()
        if exchange is not None:
            exchange()

    samplers = {name: _sampler(world, call) for name, call in {**calls, "step": step}.items()}
    interleave(samplers, _WARM_UP)
    return {**seconds, **interleave(samplers, repetitions)}


def _buffers(size: int) -> Buffers:
    return Buffers(np.zeros(size // ELEMENT_BYTES, dtype=np.float32), 1)


def _compute() -> Callable[[], None]:
    """A few products of matrices: work that the cores do and the memory hardly sees."""
    generator = torch.Generator().manual_seed(1)
    one = torch.randn(_SIDE, _SIDE, generator=generator)
    out = torch.empty_like(one)

    def compute() -> None:
        for _ in range(_PRODUCTS):
            torch.mm(one, one, out=out)

    return compute


def _sampler(world: Any, call: Callable[[], object]) -> Callable[[], float]:
    def sample() -> float:
        world.Barrier()
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    return sample
