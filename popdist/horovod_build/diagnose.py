"""From the text of a failure to its reason and its fix. Pure.

Tests feed it with logs of builds that were really broken.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from popdist.horovod_build.reasons import BUILD, CHECK, DOWNLOAD

if TYPE_CHECKING:
    from popdist.horovod_build.reasons import Rule

_SEEN_LENGTH = 300


@dataclass(frozen=True)
class Diagnosis:
    """Why something failed, and what to do.

    Attributes:
        what: What was wrong, in words.
        seen: The telling line.
        accepted: What would have worked.
        hint: The fix.
    """

    what: str
    seen: str
    accepted: str | None
    hint: str


def explain_build(log: str) -> Diagnosis:
    """Why a compilation failed.

    Args:
        log: Its output.

    Returns:
        The reason; where none is known, the last lines that look like one.
    """
    return _explain(
        log,
        BUILD,
        Diagnosis(
            "compiling Horovod failed",
            _last_line(log),
            None,
            "read the log's end, and report what it says",
        ),
    )


def explain_download(output: str) -> Diagnosis:
    """Why pip could not download.

    Args:
        output: What pip printed.

    Returns:
        The reason.
    """
    return _explain(
        output,
        DOWNLOAD,
        Diagnosis("the download failed", _last_line(output), None, "try it by hand with pip"),
    )


def explain_check(output: str) -> Diagnosis:
    """Why the two-rank check failed.

    Args:
        output: What mpirun and the ranks printed.

    Returns:
        The reason.
    """
    return _explain(
        output,
        CHECK,
        Diagnosis(
            "two ranks could not exchange data",
            _last_line(output),
            None,
            "build again: python -m popdist.horovod_build --force",
        ),
    )


def _explain(text: str, rules: tuple[Rule, ...], otherwise: Diagnosis) -> Diagnosis:
    for rule in rules:
        match = re.search(rf"^.*(?:{rule.pattern}).*$", text, re.MULTILINE)
        if match:
            return Diagnosis(rule.what, _short(match.group()), rule.accepted, rule.hint)
    return otherwise


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return _short(lines[-1]) if lines else "no output at all"


def _short(line: str) -> str:
    line = line.strip()
    return line if len(line) <= _SEEN_LENGTH else line[:_SEEN_LENGTH] + "..."
