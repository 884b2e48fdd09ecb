"""Says for people which NUMA nodes the instances of a job are going to be bound to."""

from __future__ import annotations

from popdist.poprun.machines.cpus import format_list
from popdist.poprun.machines.numa import divide

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from popdist.poprun.machines.cpus import Node
    from popdist.poprun.plan.job import Job
    from popdist.poprun.plan.placement import Instance


def label_numa(
    job: Job, instances: Sequence[Instance], nodes_of: Callable[[str], Sequence[Node]]
) -> tuple[Instance, ...]:
    """Fills in what the topology table shows. Pure, but for what it asks of hosts.

    Args:
        job: The job.
        instances: Its placed instances.
        nodes_of: The usable nodes of a host, by name; none where they are not known.

    Returns:
        The instances. Those that are not bound, as on a host with one node, have no label.
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
    share = divide(nodes, one.fields["local_instance_index"], neighbours)
    return format_list(share.nodes) if len(share.nodes) < len(nodes) else ""
