"""What the doctor has found: plain records that the report is made from."""

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
    """One thing that was looked at.

    Attributes:
        topic: What was looked at.
        status: ``ok``, ``note`` for what may cost speed or matter elsewhere, or ``problem`` for
            what keeps jobs from working.
        text: What was found, one line.
        fix: What to do about it; None where nothing is to be done.
        facts: The same for programs: JSON values by name.
    """

    topic: str
    status: Status
    text: str
    fix: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def problem_from(topic: str, error: PopdistError) -> Finding:
    """A finding from an error of popdist.

    Args:
        topic: What was looked at.
        error: The error.

    Returns:
        A problem with the error's hint as its fix.
    """
    seen = "" if error.value is None else f" ({error.value})"
    return Finding(
        topic,
        "problem",
        f"{error.what}{seen}",
        fix=error.hint or error.accepted,
        facts={"code": error.code},
    )


# Writes the findings down, for people and for programs. Pure.


_MARKS = {"ok": "ok", "note": "note", "problem": "PROBLEM"}


def line(finding: Finding) -> str:
    """One finding.

    Args:
        finding: The finding.

    Returns:
        One line.
    """
    return f"{_MARKS[finding.status]:>7}  {finding.topic}: {finding.text}"


def verdict(findings: Sequence[Finding]) -> str:
    """How it ends: OK, or what is to be done, numbered, the necessary first.

    Args:
        findings: All findings.

    Returns:
        Several lines.
    """
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
    """All of it for programs.

    Args:
        findings: All findings.

    Returns:
        A JSON object: ``ok`` (no finding is a problem), ``findings`` (a list of objects with
        ``topic``, ``status``, ``text``, ``fix`` and ``facts``) and ``fixes`` (the numbered list).
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
