"""The results as JSON, for tools; ``docs/benchmarks.md`` lists the keys."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.harness import Report, Result
    from benchmarks.rows import Row

    Document = dict[str, Any]

FORMAT = 1
"""Version of the JSON form; it grows when a key changes its meaning or goes."""


def as_document(report: Report) -> Document:
    """The results as JSON values.

    Args:
        report: What was found.

    Returns:
        One object.
    """
    return {
        "format": FORMAT,
        "quick": report.quick,
        "machine": report.machine,
        "benchmarks": [_summary(result, report.machine.get("commit")) for result in report.results],
        "rows": [
            {"benchmark": result.benchmark, **_record(row)}
            for result in report.results
            for row in result.rows
        ],
    }


def as_json(document: Document) -> str:
    """Writes results.

    Args:
        document: The object.

    Returns:
        Its text.
    """
    return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)


def _summary(result: Result, commit: object) -> dict[str, object]:
    return {
        "name": result.benchmark,
        "seconds": round(result.seconds, 3),
        "measured": result.measured,
        "commit": commit,
        "others": None if result.others is None else round(result.others, 3),
        "busy": result.busy,
        "error": result.error,
    }


def _record(row: Row) -> dict[str, object]:
    return {
        "name": row.name,
        "value": row.value,
        "unit": row.unit,
        "median": row.median,
        "samples": row.samples,
        "peer": row.peer,
        "peer_value": row.peer_value,
        "peer_median": row.peer_median,
        "ratio": row.ratio,
        "difference": row.difference,
        "aim": None if row.aim is None else row.aim.sentence,
        "met": row.met,
        "refused": row.refused,
        "note": row.note,
        "parameters": dict(row.parameters),
    }
