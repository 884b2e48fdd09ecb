"""The program of each rank of the check: ``ranks.py FRAMEWORK FOLDER``, started by mpirun.

The file runs without popdist on the module path.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

_LENGTH = 5


def contribution(rank: int) -> list[float]:
    """The numbers that a rank adds: different in every rank and every element."""
    return [float(rank + 1 + index * (rank + 2)) for index in range(_LENGTH)]


def expected(ranks: int) -> list[float]:
    """The sums that each of ``ranks`` ranks must get."""
    return [sum(column) for column in zip(*map(contribution, range(ranks)), strict=True)]


def _torch(horovod: Any, values: list[float]) -> tuple[list[float], str, str]:
    torch = import_module("torch")
    # NCCL needs a GPU for every rank; with fewer GPUs, only the CPU path can be checked.
    gpus = horovod.nccl_built() and torch.cuda.device_count() >= horovod.size()
    device = f"cuda:{horovod.local_rank()}" if gpus else "cpu"
    tensor = torch.tensor(values, device=device)
    result = horovod.allreduce(tensor, op=horovod.Sum, name="check")
    return result.tolist(), torch.__version__, tensor.device.type


def _tensorflow(horovod: Any, values: list[float]) -> tuple[list[float], str, str]:
    tensorflow = import_module("tensorflow")
    result = horovod.allreduce(tensorflow.constant(values), op=horovod.Sum, name="check")
    return result.numpy().tolist(), tensorflow.__version__, "cpu"


def answer(framework: str, horovod: Any) -> dict[str, Any]:
    """Reduces this rank's numbers with the other ranks' and returns the input of `check.judge`."""
    reduce = {"torch": _torch, "tensorflow": _tensorflow}[framework]
    sums, version, device = reduce(horovod, contribution(horovod.rank()))
    built = {
        "MPI": horovod.mpi_built(),
        "Gloo": horovod.gloo_built(),
        "NCCL": horovod.nccl_built(),
    }
    return {
        "size": horovod.size(),
        "sums": sums,
        "version": version,
        "device": device,
        "abilities": [ability for ability, there in built.items() if there],
    }


def _main(framework: str, folder: str) -> None:
    horovod = import_module(f"horovod.{framework}")
    horovod.init()
    found = answer(framework, horovod)
    (Path(folder) / str(horovod.rank())).write_text(json.dumps(found), encoding="utf-8")
    horovod.shutdown()


if __name__ == "__main__":
    _main(*sys.argv[1:])
