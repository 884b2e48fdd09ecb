"""This process's place in its job, whoever started it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from popdist import backend
from popdist.popdist_core import topology


@dataclass(frozen=True)
class Job:
    """Which of a job's replicas a process runs.

    Attributes:
        first_replica: Index of its first one.
        local_replicas: How many it runs.
        total_replicas: How many the job runs.
        first: Whether it is the one that reports.
        horovod: The module ``horovod.torch``, initialised, where another launcher than poprun
            started several processes.
    """

    first_replica: int
    local_replicas: int
    total_replicas: int
    first: bool
    horovod: Any = None


def current_job() -> Job:
    """Finds this process's place; connects it with the others where poprun did not start them.

    Returns:
        What poprun says; else the place among the processes that another launcher has started, each
        with one replica; else that the process is alone.

    Raises:
        BackendError: No usable Horovod is installed, or it sees another job than the launcher's.
    """
    here = topology()
    if here.launched:
        first = here.replica_index_offset
        return Job(first, here.num_local_replicas, here.num_total_replicas, first == 0)
    horovod = backend.connect("torch")
    if horovod is None:
        return Job(0, 1, 1, first=True)
    rank = int(horovod.rank())
    return Job(rank, 1, int(horovod.size()), rank == 0, horovod)
