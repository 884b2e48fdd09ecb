"""Processes that no launcher started, and how the real Horovod starts in them."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from popdist.popdist_core import isPopdistEnvSet

if TYPE_CHECKING:
    from collections.abc import Iterator

_LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "HOROVOD_RANK")
"""Variables of which mpirun (Open MPI, PRRTE, MPICH), srun and horovodrun set one."""

_GLOO = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}


def launched() -> bool:
    """Whether mpirun, srun or horovodrun started this process; poprun starts them through mpirun.

    Returns:
        False in a process that runs alone.
    """
    return any(name in os.environ for name in _LAUNCHED)


@contextmanager
def connected_by_gloo(horovod: Any) -> Iterator[None]:
    """Has Horovod start by gloo in a process that nobody launched, as rank 0 of 1.

    MPI need not be able to start there, and then ends the process instead of raising. Nothing
    changes in a launched process, where the user has chosen a controller, and where Horovod was
    built without gloo.

    Args:
        horovod: The binding whose ``init`` is called inside.

    Yields:
        None; programs that are started afterwards inherit no setting.
    """
    is_launched = isPopdistEnvSet() or launched()
    chosen = any(name in os.environ for name in _GLOO)
    if is_launched or chosen or not horovod.gloo_built():
        yield
        return
    os.environ.update(_GLOO)
    try:
        yield
    finally:
        for name in _GLOO:
            del os.environ[name]
