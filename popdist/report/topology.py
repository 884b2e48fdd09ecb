"""The picture of who ran where: hosts, their instances, and the replicas of each."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from popdist.report.reading import Run

_MOST_DRAWN = 64
_MOST_REPLICAS = 16
_MOST_HOSTS = 256


def topology(run: Run) -> str:
    """Draws the topology.

    Args:
        run: What is known.

    Returns:
        HTML.
    """
    known = {one["index"]: one for one in run.result.get("instances", [])}
    if not known:
        listed = ", ".join(map(str, run.instances))
        return (
            '<section id="topology"><h2>Topology</h2>'
            f"<p>Where instances {listed} ran is not known.</p></section>"
        )
    hosts: dict[str, list[dict[str, Any]]] = {}
    for one in known.values():
        hosts.setdefault(str(one.get("host")), []).append(one)
    inside = _drawn(hosts) if len(known) <= _MOST_DRAWN else _listed(hosts)
    return f'<section id="topology"><h2>Topology</h2>{inside}</section>'


def _drawn(hosts: dict[str, list[dict[str, Any]]]) -> str:
    boxes = [
        f'<div class="host"><b>{escape(name)}</b>{"".join(map(_instance, members))}</div>'
        for name, members in hosts.items()
    ]
    return f'<div class="hosts">{"".join(boxes)}</div>'


def _instance(one: dict[str, Any]) -> str:
    first, count = one.get("replica_offset", 0), one.get("replicas", 1)
    drawn = "".join(f"<i>{first + number}</i>" for number in range(min(count, _MOST_REPLICAS)))
    more = f" and {count - _MOST_REPLICAS} more" if count > _MOST_REPLICAS else ""
    how = _ending(one)
    failed = " failed" if how else ""
    return (
        f'<div class="instance{failed}">instance {one["index"]}: replicas {drawn}{more}'
        f'<div class="soft">PID {escape(str(one.get("pid")))}{how}</div></div>'
    )


def _ending(one: dict[str, Any]) -> str:
    if one.get("signal"):
        return f", {escape(str(one['signal']))}"
    code = one.get("exit_code")
    if code == 0:
        return ""
    return f", exit code {escape(str(code))}" if code is not None else ", did not end by itself"


def _listed(hosts: dict[str, list[dict[str, Any]]]) -> str:
    rows = []
    for name, members in list(hosts.items())[:_MOST_HOSTS]:
        indices = [one["index"] for one in members]
        replicas = sum(one.get("replicas", 1) for one in members)
        bad = [str(one["index"]) for one in members if _ending(one)]
        rows.append(
            f"<tr><td>{escape(name)}</td><td>{min(indices)} to {max(indices)}</td>"
            f"<td>{replicas}</td><td>{', '.join(bad[:12]) or 'all well'}</td></tr>"
        )
    head = "<th>host</th><th>instances</th><th>replicas</th><th>not ended well</th>"
    more = f"<p>and {len(hosts) - _MOST_HOSTS} more hosts</p>" if len(hosts) > _MOST_HOSTS else ""
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>{more}'
