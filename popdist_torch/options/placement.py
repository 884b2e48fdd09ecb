"""The replicas of the job that this process runs, for batching, loading and training."""

from __future__ import annotations

from dataclasses import dataclass, replace

from popdist_torch.errors import OptionError


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

    def in_groups(self, size: int) -> Placement:
        """The same placement, counted in groups of ``size`` replicas that read the same input.

        Raises:
            OptionError: Some process's replicas cannot be grouped like that.
        """
        counts = (self.first_replica, self.local_replicas, self.total_replicas)
        if any(count % size for count in counts):
            raise OptionError(
                "PD300",
                "inputReplicaGrouping needs a size that divides the replicas of every process",
                value=f"groups of {size}; {self.local_replicas} of {self.total_replicas} replicas "
                f"are here, from {self.first_replica} on",
            )
        first, local, total = (count // size for count in counts)
        return replace(self, first_replica=first, local_replicas=local, total_replicas=total)
