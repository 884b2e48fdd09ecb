"""The program of each rank in the doctor's job: ``ranks.py FRAMEWORK FOLDER measure|check``.

Each rank reduces numbers whose sums are known. With ``measure``, each rank also times an allreduce
of several sizes against a plain copy of as many bytes, which both ranks make at the same time. Both
ranks share one memory, so the copy is the lower bound of an allreduce.
"""

from __future__ import annotations

import ctypes
import json
import sys
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from popdist.horovod_build.ranks import answer

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = {4 << 10: 60, 1 << 20: 40, 16 << 20: 12}
"""Sizes in bytes, with the number of timed calls."""

MEASURE = "measure"
CHECK = "check"

_FLOAT_BYTES = 4


def _reducer(framework: str, horovod: Any) -> Callable[[int, str], Callable[[], object]]:
    """Makes the factory of allreduces, each for a number of floats and a name."""
    if framework == "torch":
        torch = import_module("torch")

        def prepare(count: int, name: str) -> Callable[[], object]:
            tensor = torch.zeros(count)
            return lambda: horovod.allreduce_(tensor, op=horovod.Sum, name=name)

        return prepare
    tensorflow = import_module("tensorflow")

    def prepare_tensorflow(count: int, name: str) -> Callable[[], object]:
        tensor = tensorflow.zeros([count])
        return lambda: horovod.allreduce(tensor, op=horovod.Sum, name=name).numpy()

    return prepare_tensorflow


def _copier(size: int) -> Callable[[], object]:
    source, target = (ctypes.create_string_buffer(size) for _ in range(2))
    return lambda: ctypes.memmove(target, source, size)


def _best(call: Callable[[], object], barrier: Callable[[], object], times: int) -> float:
    """The shortest time of a call in seconds, started by all ranks together."""
    best = float("inf")
    for _ in range(times):
        barrier()
        start = perf_counter()
        call()
        best = min(best, perf_counter() - start)
    return best


def _times(framework: str, horovod: Any) -> dict[int, dict[str, float]]:
    prepare = _reducer(framework, horovod)
    barrier = prepare(1, "barrier")
    return {
        size: {
            "copy": _best(_copier(size), barrier, times),
            "allreduce": _best(prepare(size // _FLOAT_BYTES, f"size{size}"), barrier, times),
        }
        for size, times in SIZES.items()
    }


def _main(framework: str, folder: str, what: str) -> None:
    horovod = import_module(f"horovod.{framework}")
    horovod.init()
    found = answer(framework, horovod)
    if what == MEASURE:
        found["seconds"] = _times(framework, horovod)
    (Path(folder) / str(horovod.rank())).write_text(json.dumps(found), encoding="utf-8")
    horovod.shutdown()


if __name__ == "__main__":
    _main(*sys.argv[1:])
