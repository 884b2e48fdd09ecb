"""What the doctor has found: plain records that the report is made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

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
