"""The tables and pictures of the benchmark page, from the newest committed record."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the benchmarks are a part of the checkout and not installed

from benchmarks.record import measured, newest  # noqa: E402 - after the path above
from benchmarks.report import number  # noqa: E402 - as above
from benchmarks.suite import SUITE  # noqa: E402 - as above

if TYPE_CHECKING:
    from collections.abc import Iterator

PICTURES = ROOT / "docs" / "images" / "benchmarks"

NOTHING = "No full run has been recorded yet."
_VERDICTS = {True: "met", False: "**not met**", None: "no verdict"}


def aims_table() -> str:
    """Every aim with what was measured, and what it was measured on."""
    found = newest()
    if found is None:
        return NOTHING
    path, record = found
    machine = record["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    about = (
        f"Recorded on {measured(record)[:10]} at commit {_commits(record)}, on "
        f"{machine['description']}; {versions}. All rows: `{path.relative_to(ROOT)}`."
    )
    head = "| Benchmark | Measured | Minimum | Peer | Peer's | Ratio | Aim | |"
    return "\n".join(
        [about, "", *_tally(record), "", head, "|---|---|---|---|---|---|---|---|", *_lines(record)]
    )


def _commits(record: dict[str, Any]) -> str:
    """The commit of most benchmarks, and those that others were measured at."""
    by_commit: dict[str, list[str]] = {}
    for one in record["benchmarks"]:
        by_commit.setdefault(one["commit"], []).append(f"`{one['name']}`")
    main, *others = sorted(by_commit, key=lambda commit: -len(by_commit[commit]))
    return "; ".join([main, *(f"{', '.join(by_commit[one])} at {one}" for one in others)])


def phases_table() -> str:
    """The phases of a launch, in the order of time."""
    found = newest()
    rows = [row for row in found[1]["rows"] if row["benchmark"] == "phases"] if found else []
    if not rows:
        return "The phases have not been recorded yet: `python -m benchmarks --only phases`."
    rows.sort(key=lambda row: int(row["parameters"]["phase"]))
    lines = [f"| {row['name']} | {number(row['median'])} |" for row in rows]
    total = number(sum(row["median"] for row in rows))
    head = ["| Phase | Median (ms) |", "|---|---|"]
    return "\n".join([*head, *lines, f"| all | {total} |"])


def ddp_gains() -> str:
    """Steps of programs for torch's DDP, accelerate and Lightning, with popdist and without."""
    ours = ("DDP with popdist's hook", "popdist loop", "popdist under Lightning")
    return _gains("torch", ours, ("DDP", "accelerate", "Lightning DDP"))


def keras_gains() -> str:
    """Steps of Keras on two ranks, with popdist and without."""
    return _gains("tensorflow", ("Keras step",), ("Horovod optimizer", "MultiWorkerMirrored"))


def _gains(benchmark: str, ours: tuple[str, ...], peers: tuple[str, ...]) -> str:
    """The steps on two ranks of a benchmark, each beside a peer's."""
    found = newest()
    rows = [
        row
        for row in (found[1]["rows"] if found else [])
        if row["benchmark"] == benchmark
        and row["name"].startswith(ours)
        and row["name"].endswith("2 ranks")
        and row["unit"] == "ms"
        and row["peer"] in peers
    ]
    if not rows:
        return NOTHING
    lines = [
        f"| {_subject(row['name'])} | {_number(row['value'], 'ms')} | {row['peer']} "
        f"| {_number(row['peer_value'], 'ms')} "
        f"| {round(100 * (row['value'] / row['peer_value'] - 1)):+d} % |"
        for row in rows
    ]
    head = ["| popdist | A step | Peer | A step | Change |", "|---|---|---|---|---|"]
    return "\n".join([*head, *dict.fromkeys(lines)])


def _subject(name: str) -> str:
    """The name of a row without what all rows of the table have."""
    return name.removesuffix(", 2 ranks").removesuffix(": step")


def pictures() -> str:
    """The charts of the record, but for the overview at the top of the page."""
    found = newest()
    if found is None:
        return NOTHING
    names = [one["name"] for one in found[1]["benchmarks"]]
    about = {one.name: one.what for one in SUITE}
    shown = [
        (stem, about.get(name, name))
        for name in names
        for stem in ([f"{name}-sizes"] * (name == "exchange") + [name])
    ]
    return "\n\n".join(
        f"![{stem}: {what}](images/benchmarks/{stem}.png)"
        for stem, what in shown
        if (PICTURES / f"{stem}.png").is_file()
    )


def _lines(record: dict[str, Any]) -> Iterator[str]:
    ran = {one["name"]: one for one in record["benchmarks"]}
    for benchmark in SUITE:
        rows = [row for row in record["rows"] if row["benchmark"] == benchmark.name]
        for row in rows:
            if row["aim"]:
                yield _line(row)
        reached = {row["aim"] for row in rows}
        for aim in benchmark.aims:
            if aim.sentence not in reached:
                why = _why(ran.get(benchmark.name))
                yield f"| `{benchmark.name}` | - | - | - | - | - | {_aim(aim.sentence)} | {why} |"


def _line(row: dict[str, Any]) -> str:
    unit = row["unit"]
    cells = [
        f"`{row['benchmark']}`",
        row["name"],
        _number(row["value"], unit),
        row["peer"] or "-",
        _number(row["peer_value"], unit),
        _number(row["ratio"], ""),
        _aim(row["aim"]),
        _VERDICTS[row["met"]],
    ]
    return f"| {' | '.join(cells)} |"


def _aim(sentence: str) -> str:
    """An aim in words, after the one that it replaces, which is crossed out."""
    known = {aim.sentence: aim for benchmark in SUITE for aim in benchmark.aims}
    was = known[sentence].was if sentence in known else None
    return f"~~{was}~~ {sentence}" if was else sentence


def _tally(record: dict[str, Any]) -> Iterator[str]:
    verdicts = [row["met"] for row in record["rows"] if row["aim"]]
    met, missed = verdicts.count(True), verdicts.count(False)
    yield (
        f"Of {len(verdicts)} rows with an aim {met} are met and {missed} are not"
        + (f"; {verdicts.count(None)} have no verdict." if None in verdicts else ".")
    )


def _why(summary: dict[str, Any] | None) -> str:
    if summary is None:
        return "not run"
    return "failed" if summary["error"] else "not measured"


def _number(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{number(value)} {unit}".strip()
