"""The program of one rank: all contenders in the same processes, taking turns."""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.sampling import interleave
from benchmarks.torch_steps import contenders
from benchmarks.torch_steps.models import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Callable

_WARM_UP = 3

_EACH_ALONE = ("plain torch", "beside DDP")
"""How the names of contenders end that exchange no gradient."""


def measure(*, workload: str, kind: str, repetitions: int, store: str) -> list[Any]:
    """Times steps of one model.

    Args:
        workload: A key of ``WORKLOADS``.
        kind: ``popdist``, ``compiled`` (all contenders with ``torch.compile``) or ``horovod``:
            which of them stands beside plain torch and DDP.
        repetitions: Samples of each contender in each window of time.
        store: A file for gloo that does not exist.

    Returns:
        The seconds by contender: on several ranks before Horovod is started, and with it.

    Raises:
        RuntimeError: Contenders ended with unequal weights; the speed of wrong results is of no
            interest.
    """
    from mpi4py import MPI

    torch.set_num_threads(1)
    world = MPI.COMM_WORLD
    chosen = WORKLOADS[workload]
    data = chosen.data(world.rank)
    compiled = kind == "compiled"
    prefix = "compiled " if compiled else ""
    makers: dict[str, Callable[..., Any]] = {"plain torch": contenders.plain}
    if world.size > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{store}", rank=world.rank, world_size=world.size
        )
        makers["DDP"] = contenders.ddp
    made = {prefix + n: make(chosen, data, compiled=compiled) for n, make in makers.items()}
    if world.size == 1 and not compiled:
        made["again plain torch"] = contenders.plain(chosen, data)
    # mpirun does not set the variables by which it finds the job.
    if kind == "popdist" and world.size > 1 and find_spec("accelerate"):
        made["accelerate"] = contenders.accelerate(chosen, data)
    # On one rank nothing is compared with what was before.
    before = [_sampled(world, made, repetitions)] if world.size > 1 else []
    start(kind)
    if kind == "horovod":
        made["Horovod"] = contenders.horovod(chosen, data)
    else:
        for name, make in (
            ("popdist model", contenders.popdist_model),
            ("popdist loop", contenders.popdist_loop),
        ):
            made[prefix + name] = make(chosen, data, compiled=compiled)
        if world.size > 1:
            made["the exchange alone"] = contenders.exchange(chosen)
            if not compiled:
                made["DDP with popdist's hook"] = contenders.ddp_hook(chosen, data)
                made["an exchange beside plain torch"] = contenders.beside(chosen, data)
                made["an exchange beside DDP"] = contenders.beside_ddp(chosen, data)
    during = _sampled(world, made, repetitions)
    return [*before, during]


def start(kind: str) -> None:
    """Starts a Horovod with its defaults, or popdist's.

    Args:
        kind: ``horovod``, or any other kind of `measure`.
    """
    if kind == "horovod":
        import horovod.torch as hvd
    else:
        import popdist_torch.horovod as hvd
    hvd.init()


def _sampled(world: Any, made: dict[str, Any], repetitions: int) -> dict[str, list[float]]:
    samplers = {name: _sampler(world, step) for name, (_, step) in made.items()}
    interleave(samplers, _WARM_UP)
    seconds = interleave(samplers, repetitions)
    for name, (model, _) in made.items():
        first = next(iter(model.parameters())).detach().clone().numpy()
        if not name.endswith(_EACH_ALONE) and (world.bcast(first) != first).any():
            raise RuntimeError(f"{name} left the ranks with unequal weights")
    return seconds


def _sampler(world: Any, step: Callable[[], None]) -> Callable[[], float]:
    def sample() -> float:
        world.Barrier()
        started = time.perf_counter()
        step()
        return time.perf_counter() - started

    return sample
