"""The program of one rank: all contenders in the same processes, taking turns."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.exchange.cases import ELEMENT_BYTES, Case
from benchmarks.exchange.contenders import (
    Buffers,
    Contender,
    Gloo,
    HorovodDefaults,
    Memcpy,
    Mpi,
    Popdist,
)
from benchmarks.sampling import interleave

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_WARM_UP = 1


def measure(
    *, cases: Sequence[Sequence[Any]], repetitions: int, horovod: str, store: str
) -> dict[str, Any]:
    """Measures every case twice: before Horovod is started, and with it.

    Horovod's thread wakes up all the time once it runs. Its peers are measured without it first, so
    that it cannot slow them down unseen, and again in turns with it.

    Args:
        cases: The fields of each `Case`.
        repetitions: Samples of each contender in each window of time.
        horovod: How Horovod is started: ``defaults`` or ``popdist``.
        store: A file for gloo that does not exist.

    Returns:
        ``windows``: for each window, for each case, the seconds by contender; ``cores``: how many
        this rank may use; ``horovod``: the settings of Horovod in its environment.
    """
    from mpi4py import MPI

    torch.set_num_threads(1)
    world = MPI.COMM_WORLD
    known = [Case(*fields) for fields in cases]
    gloo = Gloo(store, world.rank, world.size)
    peers: list[Contender] = [Mpi(MPI), Mpi(MPI, sliced=True), gloo]
    before = [_measure_case(MPI, case, peers, repetitions) for case in known]
    started: Contender = Popdist() if horovod == "popdist" else HorovodDefaults()
    during = [_measure_case(MPI, case, [*peers, started], repetitions) for case in known]
    return {
        "windows": [before, during],
        "cores": len(os.sched_getaffinity(0)),
        "horovod": {k: v for k, v in sorted(os.environ.items()) if k.startswith("HOROVOD_")},
    }


def _measure_case(
    mpi: Any, case: Case, others: Sequence[Contender], repetitions: int
) -> dict[str, list[float]]:
    fresh = case.buffers == "fresh"
    contenders: list[Contender] = [Memcpy(fresh=fresh), *others]
    values = np.zeros(case.size // ELEMENT_BYTES, dtype=np.float32)
    values.fill(0)  # zeros() maps one shared page of zeros until something is written
    samplers = {}
    for contender in contenders:
        _check(mpi, case, contender)
        call, before = _call(case, contender, values)
        samplers[contender.name] = partial(_sample, mpi, case, call, before)
    interleave(samplers, _WARM_UP)
    return interleave(samplers, repetitions)


def _check(mpi: Any, case: Case, contender: Contender) -> None:
    """Sums once something known: the speed of a wrong result is of no interest."""
    world = mpi.COMM_WORLD
    mine = np.full(case.size // ELEMENT_BYTES, world.rank + 1, dtype=np.float32)
    buffers = Buffers(mine, case.tensors)
    contender.prepare(buffers)()
    expected = world.rank + 1 if contender.name == Memcpy.name else sum(range(world.size + 1))
    if not (buffers.flat == expected).all():
        raise RuntimeError(f"{contender.name} gave a wrong sum for {case.label}")


def _call(
    case: Case, contender: Contender, values: np.ndarray[Any, Any]
) -> tuple[Callable[[], Buffers | None], Callable[[], None] | None]:
    """One exchange, and what is done before each sample, outside the clock.

    Buffers that the exchange returns are released by the caller.
    """
    if case.buffers != "fresh":
        kept = Buffers(values, case.tensors)
        write = partial(np.copyto, kept.flat, values) if case.buffers == "written" else None
        return contender.prepare(kept), write

    def exchange() -> Buffers:
        buffers = Buffers(values, case.tensors)
        contender.prepare(buffers)()
        return buffers

    return exchange, None


def _sample(
    mpi: Any,
    case: Case,
    call: Callable[[], Buffers | None],
    before: Callable[[], None] | None,
) -> float:
    """Takes one sample; what it allocated is released when the clock has stopped."""
    if before is not None:
        before()
    mpi.COMM_WORLD.Barrier()
    start = time.perf_counter()
    kept = [call() for _ in range(case.calls)]
    seconds = time.perf_counter() - start
    del kept
    return seconds / case.calls
