"""Hints for imports that failed in a program, from the last lines of its standard error."""

from __future__ import annotations

import os
import re
import sys

from popdist import OTHER_NAMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_MISSING = re.compile(r"No module named '(popdist[\w.]*)'")
_OF_A_FILE = re.compile(
    r"module '(\w+)[\w.]*' has no attribute|'(\w+)' is not a package|"
    r"cannot import name .* from '(\w+)"
)


def hint(text: str, program: Sequence[str]) -> str:
    """A hint for the last error in a program's standard error; empty without one.

    ``program`` is the command line of the program, in the working directory of the job.
    """
    hidden = _hiding_file(text, program)
    if hidden:
        return hidden
    missing = _MISSING.findall(text)
    if missing:
        part = missing[-1].partition(".")[2]
        if part:
            return OTHER_NAMES.get(part, "")
        return f"{program[0]} has no popdist; that of {sys.executable} starts poprun"
    from popdist.sdk.finder import ALIASES

    if any(f"No module named '{name}'" in text for name in ALIASES):
        return "poprun --sdk-names gives popdist's modules the names of the SDK's"
    return ""


def _hiding_file(text: str, program: Sequence[str]) -> str:
    """Names a file of the program's folder that has the name of the package it wanted."""
    scripts = [word for word in program[1:] if word.endswith(".py")]
    folder = os.path.dirname(scripts[0]) if scripts else ""
    for found in reversed(_OF_A_FILE.findall(text)):
        name = next(filter(None, found))
        path = os.path.join(folder, f"{name}.py")
        if os.path.exists(path):
            return f"{path} hides the package {name}; give the file another name"
    return ""
