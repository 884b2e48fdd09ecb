"""Writes the findings down, for people and for programs. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist.poprun.doctor.findings import Finding

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
