"""Starts a program with the SDK's names: ``python -m popdist.sdk [python options] program ...``.

The process becomes a Python that starts with the names. So what a program sees of itself
(`sys.argv`, ``sys.path[0]``, ``__main__``, exit codes, tracebacks, the workers it spawns) is as
under a plain ``python``, because it is one.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from popdist import witness
from popdist.errors import UsageError
from popdist.sdk.startup.environment import enable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

_DEAF = {"I": "isolated", "E": "ignore_environment", "S": "no_site"}
"""Options with which Python starts without the names, and their names in `sys.flags`."""

_WITH_VALUE = "WXcm"


def become(arguments: Sequence[str]) -> NoReturn:
    """Replaces this process by a Python that knows the SDK's names.

    Args:
        arguments: Python's own: options, then a program, ``-m module``, ``-c code`` or ``-``, and
            the program's arguments.

    Raises:
        UsageError: Python is told to start without the names.
    """
    words = [*_own_options(), *arguments]
    refused = [letter for letter in _letters(words) if letter in _DEAF]
    refused += [letter for letter, flag in _DEAF.items() if getattr(sys.flags, flag)]
    if refused:
        raise UsageError(
            "PD452",
            "this Python is told to ignore what would enable the SDK's names",
            value=f"-{refused[0]}",
            hint=f"leave out -{refused[0]}, or enable the names for the whole environment: "
            "popdist-sdk enable",
        )
    enable(os.environ)
    witness.release()  # this process is not the program yet
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *words])  # noqa: S606 - no shell is the point


def _own_options() -> list[str]:
    """The words of this interpreter's command line in front of ``-m popdist.sdk``.

    They are its options, or a tool that was told to run this module, such as a profiler.
    """
    words = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv[1:])]
    module = words.pop()
    option = words.pop() if not module.startswith("-") else module[: module.index("m") + 1]
    return words if option == "-m" else [*words, option[:-1]]  # the options of `-Bm`


def _letters(words: Sequence[str]) -> list[str]:
    """The one-letter options in front of the program."""
    letters: list[str] = []
    pending = iter(words)
    for word in pending:
        if not word.startswith("-") or word in ("-", "--"):
            break
        if word.startswith("--"):
            continue
        for place, letter in enumerate(word[1:], 2):
            if letter in "cm":
                return letters
            if letter in _WITH_VALUE:
                if place == len(word):
                    next(pending, None)
                break
            letters.append(letter)
    return letters
