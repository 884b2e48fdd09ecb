"""This process's place in its job, whoever started it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from popdist.popdist_core import topology


@dataclass(frozen=True)
class Job:
    """Which of a job's replicas a process runs.

    Attributes:
        first_replica: Index of its first one.
        local_replicas: How many it runs.
        total_replicas: How many the job runs.
        first: Whether it is the one that reports.
        horovod: The module ``horovod.torch`` where the program started Horovod without poprun.
    """

    first_replica: int
    local_replicas: int
    total_replicas: int
    first: bool
    horovod: Any = None


def current_job() -> Job:
    """Finds this process's place.

    Returns:
        What poprun says; else what Horovod says, if the program has started it; else that the
        process is alone.
    """
    here = topology()
    if here.launched:
        first = not here.replica_index_offset
        return Job(
            here.replica_index_offset, here.num_local_replicas, here.num_total_replicas, first
        )
    horovod = sys.modules.get("horovod.torch")
    if horovod is not None and hasattr(horovod, "init") and horovod.is_initialized():
        rank, size = horovod.rank(), horovod.size()
        return Job(rank, 1, size, rank == 0, horovod if size > 1 else None)
    return Job(0, 1, 1, first=True)
