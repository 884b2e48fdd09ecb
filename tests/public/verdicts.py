"""Judges the runs of a program."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    if program.losses is not None:
        record["losses"] = difference_of_losses(runs)
    return {"verdict": "trains", **record}


def _fault(program: Program, runs: Sequence[Run]) -> str:
    """What is wrong although all runs ended with exit code 0; empty if nothing is."""
    if not program.trains:
        return ""
    for run in runs:
        if len(run.ranks) != run.instances:
            return f"{len(run.ranks)} of {run.instances} instances trained"
        if not all(rank["moved"] for rank in run.ranks):
            return "the parameters did not change"
        for fact, what in _EQUAL.items():
            if any(rank[fact] != run.ranks[0][fact] for rank in run.ranks):
                return f"the instances {what}"
    if program.losses is not None and difference_of_losses(runs) > program.losses:
        return f"the losses of 1 and 2 instances differ by {difference_of_losses(runs):.1e}"
    return ""


def difference_of_losses(runs: Sequence[Run]) -> float:
    """The largest relative difference between losses of one instance and means over two."""
    alone, job = ([rank["losses"] for rank in run.ranks] for run in runs)
    means = [sum(values) / len(values) for values in zip(*job, strict=True)]
    if len(alone[0]) != len(means):
        return float("inf")
    return max(abs(a - b) / max(abs(a), 1e-9) for a, b in zip(alone[0], means, strict=True))


def _cause(run: Run) -> str:
    """One line that says why a run ended."""
    lines = [_MARK.sub("", line).strip() for line in run.output.splitlines()]
    errors = [line for line in lines if _ERROR.match(line)]
    # An error of a program comes before what launchers say of it.
    own = [line for line in errors if not line.startswith("poprun:")]
    text = (own or errors or [line for line in lines if line] or ["no output"])[-1]
    return text[:160]
