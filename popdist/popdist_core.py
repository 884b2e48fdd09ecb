"""The published PopDist queries: the index of this instance, the numbers of instances and replicas.

Names, defaults and restrictions are those of the PopDist guide (SDK 2.2), section 4.2.1, and of the
later SDK where marked. All answers come from one validated `popdist.popdist_core.Topology`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import lru_cache

from popdist import contract
from popdist.contract import VARIABLES, check
from popdist.errors import ArgumentError, NonUniformError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


# Where an instance stands in its job, read once from the launcher's environment variables.


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The place of one instance in its job.

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
        restart_count: How often the launcher has restarted this job after a failure; above 0, a
            program resumes from its checkpoint.
        offline: Whether the job runs without attaching to devices.
        ipu_version: Version of the IPUs that programs are told to be here; None for no IPUs.
        executable_cache_path: Folder for compiled programs.
        run_folder: Folder in which the launcher keeps this run; see `popdist.metrics`.
        compare_folder: Folder in which `popdist.recording` writes; see `popdist.debug`.
        compare_replicas: Replicas of the job with which this process alone is compared; else 1.

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
    ipu_version: int | None = None
    executable_cache_path: str | None = None
    run_folder: str | None = None
    compare_folder: str | None = None
    compare_replicas: int = 1

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


def topology() -> Topology:
    """The place of this instance in its job.

    Returns:
        The topology of this process; the single-instance default without a launcher.

    Raises:
        ContractError: The ``POPDIST_*`` variables are malformed or contradictory.
    """
    return _parse(tuple((v.name, os.environ.get(v.name)) for v in VARIABLES))


def as_told() -> Topology:
    """The place that programs are told: alone in a comparison, they have all replicas of the job.

    Returns:
        The topology for published functions and options; frameworks compute as `topology` says.
    """
    here = topology()
    count = here.compare_replicas
    if count == 1:
        return here
    return replace(here, num_local_replicas=count, num_total_replicas=count)


@lru_cache(maxsize=1)
def _parse(values: tuple[tuple[str, str | None], ...]) -> Topology:
    return Topology.from_environ({name: text for name, text in values if text is not None})


def isPopdistEnvSet() -> bool:
    """Whether this process was started by poprun.

    Returns:
        True if poprun's variables are set.
    """
    return topology().launched


def getNumTotalReplicas() -> int:
    """The number of replicas of the whole job.

    Returns:
        The total over all instances; 1 without a launcher.
    """
    return as_told().num_total_replicas


def getNumLocalReplicas() -> int:
    """The number of replicas of this instance.

    Returns:
        The local replicas; 1 without a launcher.
    """
    return as_told().num_local_replicas


def getReplicaIndexOffset() -> int:
    """The global index of this instance's first replica.

    Returns:
        The offset; 0 without a launcher.
    """
    return topology().replica_index_offset


def getNumIpusPerReplica() -> int:
    """The number of devices that one replica uses.

    Returns:
        The value of poprun's ``--ipus-per-replica``; 1 without a launcher.
    """
    return topology().num_ipus_per_replica


def checkNumIpusPerReplica(expected: int) -> bool:
    """Whether one replica uses the number of devices that the program expects.

    Args:
        expected: Devices per replica that the program was written for.

    Returns:
        True if the launcher's value (or the default, 1) equals ``expected``.
    """
    return getNumIpusPerReplica() == expected


def isUniformReplicasPerInstance() -> bool:
    """Whether every instance has the same number of replicas.

    Returns:
        True if so, and without a launcher.
    """
    return topology().uniform


def getNumInstances() -> int:
    """The number of instances of the job.

    Returns:
        The number of instances; 1 without a launcher.

    Raises:
        NonUniformError: Replicas differ between instances, for which the published function is not
            defined; `topology` knows the number there too.
    """
    return _uniform_only("getNumInstances", topology().num_instances)


def getInstanceIndex() -> int:
    """The index of this instance, from 0 to `getNumInstances` - 1.

    Returns:
        The index; 0 without a launcher.

    Raises:
        NonUniformError: Replicas differ between instances, for which the published function is not
            defined; `topology` knows the index there too.
    """
    return _uniform_only("getInstanceIndex", topology().instance_index)


def _uniform_only(function: str, answer: int | None) -> int:
    if answer is None or not topology().uniform:
        raise NonUniformError(
            "PD003",
            f"popdist.{function}() is defined only when every instance has the same number of "
            "replicas, and this job's instances differ",
            value=f"{getNumLocalReplicas()} of {getNumTotalReplicas()} replicas are here",
            accepted="a job with --num-replicas a multiple of --num-instances",
            hint="use popdist.getReplicaIndexOffset() and popdist.getNumLocalReplicas(), "
            "or popdist.topology().instance_index and .num_instances",
        )
    return answer


def getLocalInstanceIndex() -> int:
    """The index of this instance among those on its host (SDK 3).

    Returns:
        The local index; 0 without a launcher.
    """
    return topology().local_instance_index


def getDeviceId(ipusPerReplica: int | None = None, *, ipus_per_replica: int | None = None) -> int:
    """The device that this instance uses.

    On an ordinary host, devices are numbered per host and each instance owns a run of
    ``local replicas x devices per replica`` of them; the id is the first of that run. A program
    with one GPU per instance passes it to ``torch.cuda.set_device``.

    Args:
        ipusPerReplica: Devices per replica; None or 0 takes the launcher's value.
        ipus_per_replica: The same under its SDK 2 name.

    Returns:
        The id of the first device of this instance; 0 without a launcher.

    Raises:
        ArgumentError: The launcher placed this job for another number of devices per replica.
    """
    asked = ipusPerReplica or ipus_per_replica
    if asked and isPopdistEnvSet() and not checkNumIpusPerReplica(asked):
        placed = getNumIpusPerReplica()
        raise ArgumentError(
            "PD004",
            "popdist.getDeviceId() was asked for another number of devices per replica than the "
            "job was placed for",
            value=asked,
            accepted=f"{placed}, or no argument",
            hint=f"start the job with poprun --ipus-per-replica {asked}",
        )
    return topology().device_id
