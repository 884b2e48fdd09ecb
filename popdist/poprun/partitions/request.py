"""What a job wants of a partition. Pure."""

from __future__ import annotations

import os

from popdist.errors import LaunchError, UsageError
from popdist.poprun.machines.hosts import LOCAL_NAMES
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from popdist.poprun.plan.job import Job

PARTITION_OPTIONS = {
    *("vipu-partition", "vipu-allocation", "vipu-cluster", "update-partition", "reset-partition"),
}
"""Options that make a job one with a partition; the others say how."""

_SERVERS = LOCAL_NAMES | {"::1"}


class Wish(Record):
    """What a job wants of a partition.

    Attributes:
        name: The partition; None for the only one there is.
        cluster: The cluster to create it in; None for the machine's own choice.
        devices: How many devices the job needs.
        attributes: Properties that the partition must have, by the names of their options.
        timeout: Seconds to wait for devices.
        attempts: How often a partition that turns out wrong is tried.
        updates: Whether an existing partition may be changed to fit.
        resets: Whether it is taken only as a whole, and freed of leftovers.
        removes: Whether a partition that this job creates ends with it.
        visible: The GPUs that this process sees, as ``CUDA_VISIBLE_DEVICES`` has them; None for
            all.
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
    visible: str | None = None


def read_wish(job: Job, environ: Mapping[str, str]) -> Wish | None:
    """What a job wants of a partition.

    Args:
        job: The job.
        environ: The launcher's environment.

    Returns:
        The wish; None where it wants none, or leaves devices alone.

    Raises:
        LaunchError: It names a V-IPU server on the network.
        UsageError: It wants a partition for instances on other hosts.
    """
    if job.offline:
        return None
    asked = job.partition
    if asked.vipu_server_host not in _SERVERS | {os.uname().nodename}:
        raise LaunchError(
            "PD132",
            "V-IPU servers on the network are out of scope: popdist has no IPUs to ask them for, "
            "and shares this machine's own devices without a server",
            value=f"--vipu-server-host={asked.vipu_server_host}",
            accepted="localhost",
            hint="leave --vipu-server-host out to use this machine's devices, or "
            "--offline-mode=yes to leave devices alone",
        )
    if not job.given & PARTITION_OPTIONS:
        return None
    if not job.is_local:
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
    return Wish(
        name=asked.vipu_partition,
        cluster=asked.vipu_allocation or asked.vipu_cluster,
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
        visible=environ.get("CUDA_VISIBLE_DEVICES"),
    )
