"""The replicas of this process in its job, under poprun or another launcher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from popdist import backend
from popdist.popdist_core import topology


@dataclass(frozen=True)
class Job:
    """The replicas of a job that a process runs.

    Attributes:
        first_replica: Index of the process's first replica.
        local_replicas: Replicas of the process.
        total_replicas: Replicas of the job.
        first: Whether this process reports for the job.
        horovod: The module ``horovod.torch``, initialised, where another launcher than poprun
            started several processes.
    """

    first_replica: int
    local_replicas: int
    total_replicas: int
    first: bool
    horovod: Any = None


def current_job() -> Job:
    """The place in poprun's job, else in another launcher's job with one replica each, else alone.

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
