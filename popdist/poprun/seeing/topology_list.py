"""The topology of a job that is too wide for the table: one line per host and link domain."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist.poprun.plan.placement import Instance


def topology_list(instances: Sequence[Instance], domains: Sequence[int]) -> str:
    """Lists the topology.

    Args:
        instances: The placed instances.
        domains: The link domain of each.

    Returns:
        A summary and the lines.
    """
    runs: list[tuple[str, int, list[Instance]]] = []
    for one, domain in zip(instances, domains, strict=True):
        if runs and runs[-1][:2] == (one.host.name, domain):
            runs[-1][2].append(one)
        else:
            runs.append((one.host.name, domain, [one]))
    width = max(len(name) for name, _, _ in runs)
    hosts = len({name for name, _, _ in runs})
    total = instances[-1].fields["num_total_replicas"]
    counts = f"{hosts} hosts, {domains[-1] + 1} ILDs, {len(instances)} instances, {total} replicas"
    lines = [f"poprun topology: {counts}"]
    for name, domain, run in runs:
        first = run[0].fields["replica_index_offset"]
        replicas = _range(first, first + sum(one.num_local_replicas for one in run) - 1)
        lines.append(
            f"  {name:<{width}}  ILD {domain}  "
            f"instances {_range(run[0].index, run[-1].index)}  replicas {replicas}"
            + _labels("NUMA", [one.numa for one in run])
            + _labels("devices", [one.devices for one in run])
        )
    return "\n".join(lines)


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _labels(what: str, texts: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(text for text in texts if text))
    return f"  {what} {' '.join(distinct)}" if distinct else ""
