"""Shows a report to people: as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.harness import Benchmark, Report, Result
    from benchmarks.rows import Row

_HEADINGS = ("name", "min", "median", "unit", "peer", "peer min", "ratio", "aim", "met")
_OWN_COLUMNS = 4  # those before the peer
_LEFT_ALIGNED = {"name", "unit", "peer", "aim", "met"}


def as_list(suite: Sequence[Benchmark]) -> str:
    """The benchmarks there are, with their aims.

    Args:
        suite: All of them.

    Returns:
        Lines of text.
    """
    width = max(len(benchmark.name) for benchmark in suite)
    lines = []
    for benchmark in suite:
        lines.append(f"{benchmark.name:{width}}  {benchmark.what}")
        lines += [f"{'':{width}}    aim: {aim.sentence}" for aim in benchmark.aims]
    return "\n".join(lines)


def as_table(report: Report) -> str:
    """The results for a terminal.

    Args:
        report: What was found.

    Returns:
        Lines of text: the machine, a table for each benchmark, and remarks below it.
    """
    load = report.machine["load"]
    parts = [f"{report.machine['description']}\nload average: {_loads(load)}"]
    parts += [_section(result) for result in report.results]
    if report.quick:
        parts.append("A quick run: few samples. Publish numbers of full runs only.")
    return "\n\n".join(parts)


def _loads(load: object) -> str:
    values = load if isinstance(load, dict) else {}
    return ", ".join(f"{value:.2f} {key[8:].replace('_', ' ')}" for key, value in values.items())


def _section(result: Result) -> str:
    others = "" if result.others is None else f", others used {result.others:.2f} cores"
    title = f"== {result.benchmark} ({result.seconds:.0f} s{others})"
    if result.error is not None:
        return f"{title}\nFAILED: {result.error}"
    lines = [title, *_align([_HEADINGS, *_without_repetitions(result.rows)])]
    return "\n".join([*lines, *_remarks(result)])


def _without_repetitions(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """The cells of each row; a value that is compared with several peers is shown once."""
    shown: tuple[str, ...] = ()
    for row in rows:
        cells = _cells(row)
        own = cells[:_OWN_COLUMNS]
        yield ("",) * _OWN_COLUMNS + cells[_OWN_COLUMNS:] if own == shown else cells
        shown = own


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        number(row.value),
        number(row.median),
        row.unit,
        row.peer or "",
        number(row.peer_value),
        number(row.ratio),
        "" if row.aim is None else row.aim.sentence,
        _verdict(row),
    )


def _verdict(row: Row) -> str:
    if row.aim is None:
        return ""
    return {None: "no verdict", True: "met", False: "NOT MET"}[row.met]


def _remarks(result: Result) -> list[str]:
    """Each remark once, with the rows that it is about."""
    about: dict[str, list[str]] = {}
    for row in result.rows:
        for remark in filter(None, dict.fromkeys((row.note, row.refused))):
            about.setdefault(remark, []).append(row.name)
    lines = []
    for remark, names in about.items():
        unique = list(dict.fromkeys(names))
        more = f" and {len(unique) - 1} more" if len(unique) > 1 else ""
        first, *rest = remark.splitlines()
        lines += [f"  {unique[0]}{more}: {first}", *(f"      {line}" for line in rest)]
    return lines


def number(value: float | None) -> str:
    """Writes a measured value.

    Args:
        value: The value; None where there is none.

    Returns:
        Four digits that count, never an exponent.
    """
    if value is None:
        return "-"
    digits = 3 if abs(value) < 10 else 2 if abs(value) < 100 else 1 if abs(value) < 1000 else 0  # noqa: PLR2004
    return f"{value:.{digits}f}"


def _align(table: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    lines = []
    for cells in table:
        padded = [
            cell.ljust(width) if heading in _LEFT_ALIGNED else cell.rjust(width)
            for cell, width, heading in zip(cells, widths, _HEADINGS, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return lines
