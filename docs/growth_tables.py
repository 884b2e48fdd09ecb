"""The tables of the page about growth, from the newest committed record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmark_tables import NOTHING, PICTURES  # beside this script

from benchmarks.growth.comparison import PLANNED
from benchmarks.growth.curves import NETWORKS, constants, predicted, rows_of
from benchmarks.record import newest
from benchmarks.report import number

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN = (1, 2, 4, 8, 16, 64, 256, 1024, 4096, 8192)


def constants_table() -> str:
    """The measured constants."""
    found = newest()
    known = None if found is None else constants(found[1])
    if known is None:
        return NOTHING
    rows = [
        ("computing, one instance on a core of its own", f"{known.compute * 1e3:.2f} ms"),
        ("an exchange before its first message", f"{known.overhead * 1e6:.0f} us"),
        ("a message between instances of a host", f"{known.local.latency * 1e6:.1f} us"),
        ("a MiB between instances of a host", f"{known.local.per_byte * 2**20 * 1e6:.0f} us"),
    ]
    rows += [
        (
            f"{name} network (stated)",
            f"{link.latency * 1e6:.0f} us a message, {link.per_byte * 2**20 * 1e6:.0f} us a MiB",
        )
        for name, link in NETWORKS.items()
    ]
    return _table(("Constant", "Value"), rows)


def model_table() -> str:
    """Step times of the model."""
    found = newest()
    known = None if found is None else constants(found[1])
    if known is None:
        return NOTHING
    times = {network: dict(predicted(known, network)) for network in NETWORKS}
    ways = list(times[next(iter(NETWORKS))][1])
    heads = [f"{way}, {network}" for network in NETWORKS for way in ways]
    rows = [
        [f"{n:,}", *(f"{times[network][n][way] * 1e3:.1f}" for network in NETWORKS for way in ways)]
        for n in _SHOWN
    ]
    return _table(("Instances", *heads), rows)


def measured_table() -> str:
    """What was measured on one host, beside the model."""
    found = newest()
    rows = [] if found is None else [row for row in rows_of(found[1]) if row["peer"]]
    if not rows:
        return NOTHING
    return _table(
        ("", "Measured, ms", "Model, ms", "Ratio", ""),
        [
            (
                row["name"],
                *(number(row[key]) for key in ("value", "peer_value", "ratio")),
                row["note"],
            )
            for row in rows
        ],
    )


def planning_table() -> str:
    """What planning takes at each size."""
    found = newest()
    rows = [] if found is None else rows_of(found[1])
    took = {
        row["parameters"]["instances"]: row["value"]
        for row in rows
        if row["parameters"].get("what") == "plan"
    }
    if not took:
        return NOTHING
    return _table(
        ("Instances", "Hosts", "poprun --dry-run=yes, ms"),
        [(f"{n:,}", f"{max(1, n // 8):,}", number(took[n])) for n in PLANNED if n in took],
    )


def picture() -> str:
    """The chart, where there is one."""
    if not (PICTURES / "growth-model.png").is_file():
        return NOTHING
    return "![step time against instances](images/benchmarks/growth-model.png)"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


PARTS = {
    "growth-constants": constants_table,
    "growth-model": model_table,
    "growth-measured": measured_table,
    "growth-planning": planning_table,
    "growth-picture": picture,
}
