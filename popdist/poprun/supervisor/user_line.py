"""Finds the user's own line in what Python writes: the end of a traceback, the stacks of a hang."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_LINES = 8
_TRACEBACK = "Traceback (most recent call last)"
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ", "/lib64/python3")
_OURS = os.path.dirname(os.path.abspath(os.path.join(__file__, "..", "..", "..")))
_PACKAGES = ("popdist", "popdist_torch", "popdist_tf", "popdist_onnx")
_ADAPTERS = tuple(os.path.join(_OURS, name, "") for name in _PACKAGES)


def line_of_stacks(text: str) -> str:
    """Where a program is, by the stacks of all of its threads as `faulthandler` writes them.

    Args:
        text: The stacks, innermost call first; those of the main thread last.

    Returns:
        The innermost line that is no library's, as ``train.py, line 7, in main``; empty where
        there is none.
    """
    for thread in reversed(text.split("\n\n")):
        for line in thread.splitlines():
            place = _place(line)
            if place:
                return place
    return ""


def error_of(text: str) -> tuple[str, str]:
    """The last error of a program that Python reported.

    Args:
        text: The end of what the program wrote on standard error.

    Returns:
        The error with its message, and the innermost line that is no library's with its code; both
        empty where there is no traceback.
    """
    _, found, trace = text.rpartition(_TRACEBACK)
    if not found:
        return "", ""
    lines = trace.splitlines()[1:]
    place = ""
    error: list[str] = []
    for position, line in enumerate(lines):
        if not line.startswith(" "):
            error = lines[position:]
            break
        here = _place(line)
        if here:
            place = here + _code(lines, position)
    return _first_words(error), place


def _first_words(error: Sequence[str]) -> str:
    """The error's message up to an empty line, as what follows is somebody else's."""
    words: list[str] = []
    for line in error:
        if not line.strip() or len(words) == _MOST_LINES:
            break
        words.append(line.rstrip())
    return "\n".join(words)


def _place(line: str) -> str:
    """The place that a line of a traceback names, unless it is a library's; else an empty text."""
    head, quote, rest = line.strip().partition('File "')
    path, _, rest = rest.partition('", line ')
    if head or not quote or any(mark in path for mark in _LIBRARIES) or path.startswith(_ADAPTERS):
        return ""
    number, _, function = rest.replace(", in ", " in ").partition(" in ")
    inside = f", in {function}" if function and function != "<module>" else ""
    return f"{path}, line {number}{inside}"


def _code(lines: Sequence[str], position: int) -> str:
    following = lines[position + 1] if position + 1 < len(lines) else ""
    is_code = following.startswith("    ") and following.strip()
    return f": {following.strip()}" if is_code else ""
