"""The partition that a job wants: derived from the options, created or changed, and verified.

The caller holds the pool's lock.
"""

from __future__ import annotations

import os

from popdist.errors import LaunchError, UsageError
from popdist.poprun.machines.hosts import LOCAL_NAMES
from popdist.poprun.partitions.devices import allowed_devices, find_cluster
from popdist.poprun.partitions.pool import Partition, this_process
from popdist.poprun.protocol.device_locks import note_of
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from popdist.poprun.partitions.devices import Cluster, Device
    from popdist.poprun.partitions.pool import Pool
    from popdist.poprun.plan.job import Job


class BusyError(Exception):
    """Devices are in use, which may end; the text names the users."""


def create_partition(
    pool: Pool, name: str, request: PartitionRequest, partitions: Mapping[str, Partition]
) -> tuple[Partition, Cluster]:
    """Makes a partition of as many free devices as the job needs.

    Raises:
        BusyError: The devices are in other partitions.
        LaunchError: The cluster has fewer devices.
    """
    cluster = _cluster(request, partitions)
    free = _unassigned(cluster, request, partitions)
    allowed = len(allowed_devices(cluster, request.visible))
    if allowed < request.devices:
        raise LaunchError(
            "PD130",
            f"the partition needs more devices than there are in {cluster.name}",
            value=f"{request.devices} devices (replicas x --ipus-per-replica), {allowed} there",
            accepted=f"at most {allowed}",
            hint="fewer replicas, --vipu-allocation=cores-<n> to divide the cores into more, or "
            "--offline-mode=yes to leave devices alone",
        )
    if len(free) < request.devices:
        others = sorted({p.name for p in partitions.values() if p.cluster == cluster.name})
        raise BusyError(
            f"{len(free)} devices of {cluster.name} are in no partition, {request.devices} are "
            f"needed; the others are in {', '.join(others)}"
        )
    chosen = tuple(device.name for device in free[: request.devices])
    owner = this_process() if request.removes else None
    partition = Partition(name, cluster.name, chosen, owner, dict(request.attributes))
    pool.store(partition)
    return partition, cluster


def _cluster(request: PartitionRequest, partitions: Mapping[str, Partition]) -> Cluster:
    """The cluster for a new partition.

    For a V-IPU server's name, the cores are divided into as many devices as the job needs.
    """
    divided = _division(partitions)
    if request.cluster is not None or divided is not None or not request.stands_in:
        return find_cluster(request.cluster or divided)
    cluster = find_cluster(None)
    enough = len(allowed_devices(cluster, request.visible)) >= request.devices
    return cluster if enough else find_cluster(f"cores-{request.devices}")


def fit_partition(
    pool: Pool,
    known: Partition,
    cluster: Cluster,
    request: PartitionRequest,
    partitions: Mapping[str, Partition],
) -> Partition:
    """The existing partition, changed to what the job needs where the user allows changes.

    Raises:
        BusyError: The change needs devices that are in use.
        LaunchError: The partition is not what the job needs.
    """
    wrong = []
    if request.cluster is not None and find_cluster(request.cluster).name != cluster.name:
        raise _unlike(known.name, [f"it is of {cluster.name}, not of {request.cluster}"], None)
    if len(known.devices) < request.devices:
        wrong.append(f"it has {len(known.devices)} devices, the job needs {request.devices}")
    wrong += [
        f"its {name} is {known.attributes.get(name, 'not set')}, not {value}"
        for name, value in request.attributes.items()
        if known.attributes.get(name) != value
    ]
    if not wrong:
        return known
    if not request.updates:
        raise _unlike(known.name, wrong, "--update-partition=yes")
    changes = {**known.attributes, **request.attributes}
    if changes != known.attributes and (used := pool.in_use(known)):
        raise BusyError(f"{known.name} cannot be changed while {users_of(pool, used)}")
    missing = max(0, request.devices - len(known.devices))
    free = _unassigned(cluster, request, partitions)[:missing]
    if len(free) < missing:
        raise BusyError(f"{known.name} needs {missing} more devices, and {len(free)} are in none")
    devices = (*known.devices, *(device.name for device in free))
    updated = Partition(known.name, known.cluster, devices, known.owner, changes)
    pool.store(updated)
    return updated


def verify_partition(
    stored: Partition, cluster: Cluster, request: PartitionRequest
) -> list[Device]:
    """Checks that the stored partition is as wanted, and returns its devices.

    Raises:
        LaunchError: The partition differs, or a device is missing.
    """
    there = {device.name: device for device in cluster.devices}
    lost = [name for name in stored.devices if name not in there]
    wrong = [f"{', '.join(lost)} are not there any more"] if lost else []
    if len(stored.devices) < request.devices:
        wrong.append(f"it has {len(stored.devices)} devices instead of {request.devices}")
    wrong += [
        f"its {name} is not {value}"
        for name, value in request.attributes.items()
        if stored.attributes.get(name) != value
    ]
    if wrong:
        raise _unlike(stored.name, wrong, f"poprun partitions remove {stored.name}")
    return [there[name] for name in stored.devices]


def users_of(pool: Pool, names: Sequence[str]) -> str:
    """A part of a sentence that names the users of devices."""
    notes = sorted({note_of(pool.device_file(name)) for name in names} - {""})
    return f"{', '.join(names)} are in use by {'; '.join(notes) or 'another launch'}"


def _division(partitions: Mapping[str, Partition]) -> str | None:
    """The default cluster: the cores with the division of an existing partition."""
    default = find_cluster(None)
    same = [p.cluster for p in partitions.values() if p.cluster.partition("-")[0] == default.kind]
    return same[0] if same else None


def _unassigned(
    cluster: Cluster, request: PartitionRequest, partitions: Mapping[str, Partition]
) -> list[Device]:
    for other in partitions.values():
        if other.cluster.partition("-")[0] == cluster.kind and other.cluster != cluster.name:
            raise LaunchError(
                "PD130",
                f"partition {other.name} divides the {cluster.kind} of this machine in another way",
                value=f"{cluster.name} wanted, {other.cluster} there",
                accepted=f"{other.cluster} while that partition exists",
                hint=f"--vipu-allocation={other.cluster}",
            )
    assigned = {name for partition in partitions.values() for name in partition.devices}
    return [
        device
        for device in allowed_devices(cluster, request.visible)
        if device.name not in assigned
    ]


def _unlike(name: str, wrong: Sequence[str], hint: str | None) -> LaunchError:
    return LaunchError(
        "PD133", f"partition {name} is not what the job needs", value="; ".join(wrong), hint=hint
    )


# What a job wants of a partition. Pure.

PARTITION_OPTIONS = {
    *("vipu-partition", "vipu-allocation", "vipu-cluster", "update-partition", "reset-partition"),
}
"""Options that request a partition; the other partition options only refine the request."""

_SERVERS = LOCAL_NAMES | {"::1"}


class PartitionRequest(Record):
    """What a job wants of a partition.

    Attributes:
        name: The partition; None for the only existing one.
        cluster: The cluster for a new partition; None for the default.
        devices: How many devices the job needs.
        attributes: Required properties of the partition, by option name.
        timeout: Seconds to wait for devices.
        attempts: How often a partition that fails verification is tried.
        updates: Whether an existing partition may be changed to fit.
        resets: Whether all devices of the partition must be free.
        removes: Whether a partition that this job creates ends with the job.
        stands_in: Whether devices of this machine stand in for devices of a V-IPU server.
        visible: The GPUs that this process sees, as in ``CUDA_VISIBLE_DEVICES``; None for all.
    """

    name: str | None
    cluster: str | None
    devices: int
    attributes: Mapping[str, str] = {}
    timeout: float = 10.0
    attempts: int = 1
    updates: bool = False
    resets: bool = False
    removes: bool = True
    stands_in: bool = False
    visible: str | None = None


def names_a_server(job: Job) -> bool:
    """Whether a job names a V-IPU server on another host, which does not exist here."""
    return job.partition.vipu_server_host not in _SERVERS | {os.uname().nodename}


def stand_in(job: Job) -> str | None:
    """A note for users who name a V-IPU server; None where no note is needed."""
    if job.offline or not names_a_server(job):
        return None
    server = f"the V-IPU server {job.partition.vipu_server_host} is not asked, as hosts have none"
    if not job.given & PARTITION_OPTIONS:
        return server
    name = job.partition.vipu_partition or "the partition"
    if job.is_local:
        return f"{server}: {name} is made of this machine's own devices"
    return f"{server}: {name} is left out, as the job runs on several hosts, which share no devices"


def read_request(job: Job, environ: Mapping[str, str]) -> PartitionRequest | None:
    """What a job wants of a partition; None for no partition.

    Raises:
        UsageError: The job wants a partition for instances on other hosts.
    """
    if job.offline or not job.given & PARTITION_OPTIONS:
        return None
    asked = job.partition
    elsewhere = names_a_server(job)
    if not job.is_local:
        if elsewhere:  # a server's partition would have devices for all hosts
            return None
        raise UsageError(
            "PD101",
            "a partition has devices of this machine only, and the job runs on others too",
            value=", ".join(dict.fromkeys(host.name for host in job.hosts)),
            accepted="instances on this machine, or no partition",
            hint="leave the options about partitions out, or --offline-mode=yes",
        )
    attributes = {
        "num-ilds": str(job.num_ilds),
        "ipu-link-routing-type": asked.ipu_link_routing_type,
        "gw-link-routing-type": asked.gw_link_routing_type,
        "sync-type": asked.sync_type,
    }
    cluster = asked.vipu_allocation or asked.vipu_cluster
    if elsewhere and cluster and cluster.partition("-")[0] not in ("gpus", "cores"):
        cluster = None  # a cluster of the server
    return PartitionRequest(
        name=asked.vipu_partition,
        cluster=cluster,
        devices=job.num_replicas * job.ipus_per_replica,
        attributes={
            name: value
            for name, value in attributes.items()
            if value is not None and name in job.given
        },
        timeout=asked.vipu_server_timeout,
        attempts=asked.vipu_partition_attempts,
        updates=asked.update_partition,
        resets=bool(asked.reset_partition),
        removes=asked.remove_partition,
        stands_in=elsewhere,
        visible=environ.get("CUDA_VISIBLE_DEVICES"),
    )
