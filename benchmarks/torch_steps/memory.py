"""Peak memory of a rank that trains in one of the ways, alone in its process."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.memory import compare_memory, peak_bytes
from benchmarks.ranks import run_on_ranks
from benchmarks.sampling import MeasurementError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rows import Row

_STEPS = 4
_OURS = ("popdist model", "popdist loop")
_PEERS = ("DDP", "Horovod")


def rows(name: str) -> Iterator[Row]:
    """Measures one model on two ranks.

    Args:
        name: A key of ``WORKLOADS``.

    Yields:
        Each of popdist's ways against each peer.
    """
    peaks = {contender: _peaks(name, contender) for contender in (*_OURS, *_PEERS)}
    for ours in _OURS:
        for peer in _PEERS:
            yield compare_memory(
                f"{ours}, {name}, 2 ranks",
                peaks[ours],
                peer=peer,
                against=peaks[peer],
                parameters={"model": name, "ranks": 2},
            )


def _peaks(name: str, contender: str) -> list[int] | str:
    with tempfile.TemporaryDirectory(prefix="popdist-bench-") as folder:
        try:
            return run_on_ranks(
                "benchmarks.torch_steps.memory:peak",
                ranks=2,
                launcher="poprun" if contender in _OURS else "mpirun",
                # gloo otherwise looks for an interface by the host's name, which need not resolve.
                env={"GLOO_SOCKET_IFNAME": "lo"},
                workload=name,
                contender=contender,
                store=str(Path(folder) / "gloo"),
            )
        except MeasurementError as error:
            return str(error)


def peak(*, workload: str, contender: str, store: str) -> int:
    """Trains for some steps; runs on a rank.

    Args:
        workload: A key of ``WORKLOADS``.
        contender: How.
        store: A file for gloo that does not exist.

    Returns:
        Bytes.
    """
    import torch
    from mpi4py import MPI

    from benchmarks.torch_steps import contenders
    from benchmarks.torch_steps.job import start
    from benchmarks.torch_steps.models import WORKLOADS

    torch.set_num_threads(1)
    world = MPI.COMM_WORLD
    if contender == "DDP":
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{store}", rank=world.rank, world_size=world.size
        )
    else:
        start("horovod" if contender == "Horovod" else "popdist")
    make = {
        "DDP": contenders.ddp,
        "Horovod": contenders.horovod,
        "popdist loop": contenders.popdist_loop,
        "popdist model": contenders.popdist_model,
    }[contender]
    chosen = WORKLOADS[workload]
    _, step = make(chosen, chosen.data(world.rank))
    for _ in range(_STEPS):
        step()
    return peak_bytes()
