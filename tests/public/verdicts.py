"""Judges the runs of a program."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from popdist.comparison import Comparison

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.public.manifest import Program
    from tests.public.running import Run

_MARK = re.compile(r"^\[\d+(?:-\d+)?\] ?")
_ERROR = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Exit|Failure)\b.*|^poprun: \[PD\d+\].*")


_EQUAL = {
    "digests": "have different parameters",
    "updates": "made different numbers of calls",
}
"""What an observer records that must be equal on all instances."""


def judge(program: Program, runs: Sequence[Run]) -> dict[str, Any]:
    """The record of a program.

    Args:
        program: The program.
        runs: Its runs, with one instance and with two; none for a program without a command.

    Returns:
        ``verdict`` (``trains``, ``trains alone``, ``runs``, ``stops``, ``differs`` or
        ``not run``), ``reason``, and what was measured.
    """
    if not runs:
        return {"verdict": "not run", "reason": program.reason}
    record: dict[str, Any] = {"runs": [run.facts() for run in runs]}
    stopped = next((run for run in runs if run.code != 0), None)
    if stopped:
        where = "one instance" if stopped.instances == 1 else f"{stopped.instances} instances"
        late = stopped.code is None
        cause = f"no end within {program.limit} s" if late else _cause(stopped)
        return {"verdict": "not run" if late else "stops", "reason": f"{where}: {cause}", **record}
    fault = _fault(program, runs)
    if fault:
        return {"verdict": "differs", "reason": fault, **record}
    record["reason"] = program.reason
    if not program.trains:
        return {"verdict": "runs", **record}
    if not program.divides:
        return {"verdict": "trains alone", **record}
    return {"verdict": "trains", **record}


def compared(run: Run, result: Path) -> dict[str, Any]:
    """What the comparison of a job with its program alone says.

    Args:
        run: The run of a program with ``--compare-alone``.
        result: The file of ``--json``.

    Returns:
        ``equal``: whether both train the same, or None where they cannot be compared;
        ``distance``: of the gradients of the first update, or else of its weights, in parts of
        those of the program alone; ``why``: one line where they are not equal.
    """
    if not result.exists():
        return {"equal": None, "why": f"exit code {run.code}: {_cause(run)}"}
    found = Comparison.from_json(json.loads(result.read_text()))
    if found.problem:
        return {"equal": None, "why": found.problem}
    first = found.updates[0]
    distance = first.distance if first.gradients is None else first.gradients
    worst = next((update for update in found.updates if not update.is_equal), None)
    why = f"update {worst.number}: {worst.result}" if worst else ""
    record = {"equal": found.is_equal, "distance": distance, "why": why}
    return record if found.replicas is None else {**record, "replicas": found.replicas}


def _fault(program: Program, runs: Sequence[Run]) -> str:
    """What is wrong although all runs ended with exit code 0; empty if nothing is."""
    if not program.trains:
        return ""
    for run in runs:
        if len(run.ranks) != run.instances:
            return f"{len(run.ranks)} of {run.instances} instances trained"
        if not all(rank["moved"] for rank in run.ranks):
            return "the parameters did not change"
        if not all(rank["finite"] for rank in run.ranks):
            return "the parameters are not finite"
        for fact, what in _EQUAL.items():
            if any(rank[fact] != run.ranks[0][fact] for rank in run.ranks):
                return f"the instances {what}"
    return ""


def _cause(run: Run) -> str:
    """One line that says why a run ended."""
    lines = [_MARK.sub("", line).strip() for line in run.output.splitlines()]
    errors = [line for line in lines if _ERROR.match(line)]
    # An error of a program comes before what launchers say of it.
    own = [line for line in errors if not line.startswith("poprun:")]
    text = (own or errors or [line for line in lines if line] or ["no output"])[-1]
    return text[:160]
