"""Placement: the host, the replicas and the NUMA nodes of each instance. Pure."""

from __future__ import annotations

from popdist.contract import check
from popdist.errors import LaunchError
from popdist.poprun.machines.hosts import Host
from popdist.poprun.protocol.guard_argv import format_list
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from popdist.poprun.machines.cpus import Node
    from popdist.poprun.plan.job import Job

HERE = Host("localhost")


class Instance(Record):
    """One process of the job.

    Attributes:
        index: The index in the job.
        host: The instance's host.
        fields: The values of its environment, by field of `popdist.popdist_core.Topology`.
        numa: The NUMA nodes to which the instance is bound, for display; empty without binding,
            or where the host's nodes are unknown.
        devices: The reserved devices, for display; empty without a partition.
        cpus: The reserved processors, in the kernel's list format.
        variables: More environment variables, which name the devices.
        holds: Settings with which the guard locks the devices.
    """

    index: int
    host: Host
    fields: Mapping[str, Any]
    numa: str = ""
    devices: str = ""
    cpus: str = ""
    variables: Mapping[str, str] = {}
    holds: tuple[str, ...] = ()

    @property
    def num_local_replicas(self) -> int:
        """The number of replicas of the instance."""
        return int(self.fields["num_local_replicas"])

    def having(self, **changes: Any) -> Instance:
        """A copy of the record with other values."""
        return Instance(**{**vars(self), **changes})


def place(job: Job) -> tuple[Instance, ...]:
    """Places the instances of a job, in the order of their indices.

    Without slots, consecutive instances are divided evenly over the hosts (instance ``i`` of ``I``
    on host ``i * H // I``). With slots, hosts are filled in order; a host without a number has one
    slot, as in mpirun. Replicas are divided into consecutive runs. Where replicas do not divide
    evenly, the first instances have one more.

    Raises:
        LaunchError: The hosts have fewer slots than there are instances.
    """
    hosts = _hosts_of_instances(job.hosts or (HERE,), job.num_instances)
    fewest, more = divmod(job.num_replicas, job.num_instances)
    instances: list[Instance] = []
    offset = 0
    neighbours: dict[str, int] = {}
    devices: dict[str, int] = {}
    for index, host in enumerate(hosts):
        local = fewest + (index < more)
        fields = {
            "launched": True,
            "num_total_replicas": job.num_replicas,
            "num_local_replicas": local,
            "replica_index_offset": offset,
            "num_ipus_per_replica": job.ipus_per_replica,
            "uniform": more == 0,
            "num_instances": job.num_instances,
            "instance_index": index,
            "local_instance_index": neighbours.get(host.name, 0),
            "device_id": devices.get(host.name, 0),
            "offline": job.offline,
            "ipu_version": job.ipu_version,
            "executable_cache_path": job.executable_cache_path,
            "restart_count": 0,
            "compare_folder": job.compare_folder,
            "compare_replicas": job.compare_replicas,
            "run_folder": None,
        }
        check(fields)
        instances.append(Instance(index, host, fields))
        offset += local
        neighbours[host.name] = neighbours.get(host.name, 0) + 1
        devices[host.name] = devices.get(host.name, 0) + local * job.ipus_per_replica
    return tuple(instances)


def _hosts_of_instances(hosts: Sequence[Host], num_instances: int) -> list[Host]:
    if all(host.slots is None for host in hosts):
        return [hosts[index * len(hosts) // num_instances] for index in range(num_instances)]
    filled: list[Host] = []
    for host in hosts:
        filled += [host] * min(host.slots or 1, num_instances - len(filled))
    if len(filled) < num_instances:
        slots = sum(host.slots or 1 for host in hosts)
        raise LaunchError(
            "PD105",
            "the hosts have fewer slots than there are instances",
            value=f"{slots} slots, {num_instances} instances",
            accepted="at least one slot per instance",
            hint="give the hosts more slots (host:4), or no slots to divide instances evenly",
        )
    return filled


def label_numa(
    job: Job, instances: Sequence[Instance], nodes_of: Callable[[str], Sequence[Node]]
) -> tuple[Instance, ...]:
    """Adds the NUMA labels for the topology table.

    ``nodes_of`` returns the usable nodes of a host by name, or none where they are unknown. Unbound
    instances, as on a host with one node, have no label.
    """
    counts: dict[str, int] = {}
    for one in instances:
        counts[one.host.name] = counts.get(one.host.name, 0) + 1
    known = {name: nodes_of(name) for name in counts}
    labels = (
        _label(known[one.host.name], one, counts[one.host.name])
        if job.binding.applies(counts[one.host.name])
        else ""
        for one in instances
    )
    pairs = zip(instances, labels, strict=True)
    return tuple(one.having(numa=label) if label else one for one, label in pairs)


def _label(nodes: Sequence[Node], one: Instance, neighbours: int) -> str:
    if len(nodes) < 2 or one.cpus:  # noqa: PLR2004 - one node is nothing to choose from
        return ""
    from popdist.poprun.machines.numa import divide

    share = divide(nodes, one.fields["local_instance_index"], neighbours)
    return format_list(share.nodes) if len(share.nodes) < len(nodes) else ""
