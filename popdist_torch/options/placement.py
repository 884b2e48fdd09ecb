"""Which replicas of the job this process runs: what batching, loading and training all need."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The replicas of one process among those of the job.

    Attributes:
        first_replica: Global index of this process's first replica.
        local_replicas: Replicas of this process.
        total_replicas: Replicas of all processes together.
        process_id: Index of this process.
        num_processes: Number of processes.
    """

    first_replica: int = 0
    local_replicas: int = 1
    total_replicas: int = 1
    process_id: int = 0
    num_processes: int = 1
