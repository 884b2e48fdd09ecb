"""The findings of the doctor: plain records, and the report on them for people and programs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from popdist.errors import PopdistError


Status = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        topic: The subject of the check.
        status: ``ok``, ``note`` for what may cost speed or matter elsewhere, or ``problem`` for
            what stops jobs from working.
        text: The result, one line.
        fix: The repair; None where no repair is needed.
        facts: The result for programs: JSON values by name.
    """

    topic: str
    status: Status
    text: str
    fix: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def problem_from(topic: str, error: PopdistError) -> Finding:
    """A problem from an error of popdist, with the error's hint as the fix."""
    seen = "" if error.value is None else f" ({error.value})"
    return Finding(
        topic,
        "problem",
        f"{error.what}{seen}",
        fix=error.hint or error.accepted,
        facts={"code": error.code},
    )


# The report. Pure.


_MARKS = {"ok": "ok", "note": "note", "problem": "PROBLEM"}


def line(finding: Finding) -> str:
    """One finding as one line."""
    return f"{_MARKS[finding.status]:>7}  {finding.topic}: {finding.text}"


def verdict(findings: Sequence[Finding]) -> str:
    """The last lines: OK, or a numbered list of repairs, the necessary repairs first."""
    problems = [one for one in findings if one.status == "problem"]
    notes = [one for one in findings if one.status == "note" and one.fix]
    lines = []
    if problems:
        lines.append("To be repaired:")
    else:
        lines.append("OK" if not notes else "OK; what may be better:")
    for number, one in enumerate([*problems, *notes], start=1):
        if problems and number == len(problems) + 1:
            lines.append("What may be better:")
        lines.append(f"  {number}. {one.topic}: {one.fix or one.text}")
    return "\n".join(lines)


def as_json(findings: Sequence[Finding]) -> str:
    """All findings as a JSON object.

    The fields are ``ok`` (no finding is a problem), ``findings`` (a list of objects with the fields
    of `Finding`) and ``fixes`` (the numbered list of repairs).
    """
    fixes = [
        {"topic": one.topic, "fix": one.fix or one.text, "necessary": one.status == "problem"}
        for status in ("problem", "note")
        for one in findings
        if one.status == status and (one.fix or status == "problem")
    ]
    return json.dumps(
        {
            "ok": all(one.status != "problem" for one in findings),
            "findings": [asdict(one) for one in findings],
            "fixes": fixes,
        },
        indent=2,
    )
