"""Finds the user's own line in Python's output: the end of a traceback, or stacks of a hang."""

from __future__ import annotations

import os

from popdist.poprun.record import Record

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
    """The innermost line outside of libraries in a `faulthandler` dump of all threads.

    The form is ``train.py, line 7, in main``; the result is empty without such a line.
    """
    for thread in reversed(text.split("\n\n")):
        for line in thread.splitlines():
            place = _place(line)
            if place:
                return place
    return ""


class Error(Record):
    """The last Python error in a text; all is empty without one.

    Attributes:
        words: The message, up to an empty line.
        place: The innermost line outside of libraries, as ``train.py, line 7, in main``.
        code: The code of that line.
        is_inside: Whether the error was raised below that line, in a library.
    """

    words: str = ""
    place: str = ""
    code: str = ""
    is_inside: bool = False


def error_of(text: str) -> Error:
    """Finds the last Python error in a text."""
    _, found, trace = text.rpartition(_TRACEBACK)
    if not found:
        return Error()
    lines = trace.splitlines()[1:]
    place = code = ""
    is_inside = False
    error: list[str] = []
    for position, line in enumerate(lines):
        if not line.startswith(" "):
            error = lines[position:]
            break
        here = _place(line)
        if here:
            place, code, is_inside = here, _code(lines, position), False
        elif line.startswith('  File "'):
            is_inside = bool(place)
    return Error(_first_words(error), place, code, is_inside)


def _first_words(error: Sequence[str]) -> str:
    """The error's message up to an empty line; later lines are other output."""
    words: list[str] = []
    for line in error:
        if not line.strip() or len(words) == _MOST_LINES:
            break
        words.append(line.rstrip())
    return "\n".join(words)


def _place(line: str) -> str:
    """The place in a line of a traceback; empty for a line of a library."""
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
    return following.strip() if is_code else ""
