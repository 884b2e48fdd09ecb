"""The topology table, in the original launcher's published form, or a list for large jobs.

The layout rules (widths, centring, cutting) were derived from tables in public logs. Host names
that do not fit are listed below the table, and so are long labels of popdist's own rows (NUMA
nodes, devices).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist.poprun.plan.placement import Instance


_LABEL_WIDTH = 11
_TITLE = "poprun topology"
_MOST_REPLICAS = 256
"""Above this number the table is thousands of columns wide, and a list is printed instead."""


def topology_table(instances: Sequence[Instance], num_ilds: int = 1) -> str:
    """The table's lines, and below the table the host names that did not fit."""
    replicas = [one.num_local_replicas for one in instances]
    total = sum(replicas)
    domains = [one.index * num_ilds // len(instances) for one in instances]
    if total > _MOST_REPLICAS:
        return topology_list(instances, domains)
    width = len(str(total - 1)) + 2
    inner = _LABEL_WIDTH + 1 + _span(total, width)
    hosts = _runs([one.host.name for one in instances], replicas)
    cells, footnotes = _host_cells(hosts, width)
    rows = [
        _row("hosts", cells, width),
        _row("ILDs", _runs([str(domain) for domain in domains], replicas), width),
        _row("instances", [(str(i), count) for i, count in enumerate(replicas)], width),
        _row("replicas", [(str(i), 1) for i in range(total)], width),
    ]
    for label, texts in (
        ("NUMA", [one.numa for one in instances]),
        ("devices", [one.devices for one in instances]),
    ):
        if any(texts):
            rows.append(_row(label, list(zip(texts, replicas, strict=True)), width))
            footnotes += _long_labels(label, texts, replicas, width)
    between = f"|{'-' * _LABEL_WIDTH}|{'-' * (inner - _LABEL_WIDTH - 1)}|"
    head = [f" {'=' * inner}", f"|{_centred(_TITLE, inner)}|", f"|{'=' * inner}|"]
    body = [line for row in rows for line in (row, between)][:-1]
    return "\n".join([*head, *body, f" {'-' * inner}", *footnotes])


def _span(count: int, width: int) -> int:
    return count * width + count - 1


def _runs(names: Sequence[str], replicas: Sequence[int]) -> list[tuple[str, int]]:
    """Joins neighbours of the same name; each run spans its replicas."""
    runs: list[tuple[str, int]] = []
    for name, count in zip(names, replicas, strict=True):
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1] + count)
        else:
            runs.append((name, count))
    return runs


def _host_cells(
    runs: Sequence[tuple[str, int]], width: int
) -> tuple[list[tuple[str, int]], list[str]]:
    cells, footnotes = [], []
    for index, (name, count) in enumerate(runs):
        room = _span(count, width) - 2
        if len(name) <= room:
            cells.append((name, count))
            continue
        number = f"[{index}]"
        cells.append((number if len(number) <= room else ".", count))
        footnotes.append(f"{number}: {name}")
    return cells, footnotes


def _long_labels(
    label: str, texts: Sequence[str], replicas: Sequence[int], width: int
) -> list[str]:
    return [
        f"{label} of instance {index}: {text}"
        for index, (text, count) in enumerate(zip(texts, replicas, strict=True))
        if len(text) > _span(count, width) - 2
    ]


def _row(label: str, cells: Sequence[tuple[str, int]], width: int) -> str:
    drawn = "|".join(_centred(text, _span(count, width)) for text, count in cells)
    return f"|{' ' + label:<{_LABEL_WIDTH}}|{drawn}|"


def _centred(text: str, width: int) -> str:
    room = width - 2
    if len(text) > room:
        text = (text[: max(0, room - 3)] + "...")[:room]
    left = (width - len(text)) // 2
    return " " * left + text + " " * (width - len(text) - left)


# The list for large jobs.


def topology_list(instances: Sequence[Instance], domains: Sequence[int]) -> str:
    """The list for a job that is too wide for the table: one line per host and link domain."""
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
