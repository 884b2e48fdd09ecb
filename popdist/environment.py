"""Where an instance stands in its job, read once from the launcher's environment variables."""

from __future__ import annotations

from dataclasses import dataclass

from popdist import contract
from popdist.contract_rules import check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Where one instance stands in its job.

    Attributes:
        launched: Whether the variables of a launcher are present.
        num_total_replicas: Replicas of the whole job.
        num_local_replicas: Replicas of this instance.
        replica_index_offset: Global index of this instance's first replica.
        num_ipus_per_replica: Devices that one replica uses.
        uniform: Whether every instance has the same number of replicas.
        num_instances: Instances of the job; None in a non-uniform job of a foreign launcher.
        instance_index: Index of this instance; None in the same case.
        local_instance_index: Index of this instance among those on its host.
        device_id: Index of this instance's first device on its host.
        restart_count: How often the launcher has started this job again after a failure; a program
            that finds it above 0 goes on from its checkpoint.
        offline: Whether the job runs without attaching to devices.
        executable_cache_path: Folder for compiled programs.
        run_folder: Folder in which the launcher keeps this run; see `popdist.metrics`.

    Raises:
        ContractError: The fields contradict each other.
    """

    launched: bool = False
    num_total_replicas: int = 1
    num_local_replicas: int = 1
    replica_index_offset: int = 0
    num_ipus_per_replica: int = 1
    uniform: bool = True
    num_instances: int | None = 1
    instance_index: int | None = 0
    local_instance_index: int = 0
    device_id: int = 0
    restart_count: int = 0
    offline: bool = False
    executable_cache_path: str | None = None
    run_folder: str | None = None

    def __post_init__(self) -> None:
        check(vars(self))

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Topology:
        """Reads the contract from an environment.

        Args:
            environ: A mapping such as ``os.environ``.

        Returns:
            The topology; the single-instance default where no launcher's variables are present.

        Raises:
            ContractError: A variable is malformed, missing beside another, or contradicts another.
        """
        return cls(**contract.read(environ))

    def to_environ(self) -> dict[str, str]:
        """Writes the contract.

        Returns:
            Variable names with their values; `from_environ` of it gives an equal topology. Without
            a launcher, only those variables that make sense alone.
        """
        return contract.write(vars(self))
