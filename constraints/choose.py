# noqa: INP001 - a script beside data files, not a package
"""Prints the constraints file for the running Python: ``python constraints/choose.py``.

Standard library only, so that it runs before anything is installed. A name as its argument
(``default`` or ``latest``) chooses by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path

SETS = ("default", "latest")
OLDEST = (3, 10)
FIRST_WITHOUT_TENSORFLOW = (3, 14)  # TensorFlow 2.21 ends at Python 3.13
FIRST_WITHOUT_ESTIMATOR = (3, 12)  # the last TensorFlow with Estimator, 2.15, ends at Python 3.11


def choose(python: tuple[int, int]) -> str:
    """The set for a version of Python.

    Args:
        python: Major and minor version.

    Returns:
        ``"default"`` or ``"latest"``.

    Raises:
        ValueError: popdist does not support this version.
    """
    if python < OLDEST:
        required, seen = (".".join(map(str, version)) for version in (OLDEST, python))
        raise ValueError(f"popdist needs Python {required} or newer; this is {seen}")
    return "default" if python < FIRST_WITHOUT_ESTIMATOR else "latest"


def left_out(python: tuple[int, int]) -> str:
    """One line about what the set cannot have.

    Args:
        python: Major and minor version.

    Returns:
        The line; empty where nothing is left out.
    """
    if python < FIRST_WITHOUT_TENSORFLOW:
        return ""
    return f"TensorFlow is left out: it has no release for Python {python[0]}.{python[1]}"


def main(arguments: list[str]) -> int:
    """Prints the path of the file.

    Args:
        arguments: Nothing, or the name of a set.

    Returns:
        The exit code.
    """
    try:
        name = arguments[0] if arguments else choose(sys.version_info[:2])
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if name not in SETS or len(arguments) > 1:
        sys.stderr.write(f"usage: python constraints/choose.py [{'|'.join(SETS)}]\n")
        return 2
    note = "" if arguments else left_out(sys.version_info[:2])
    if note:
        sys.stderr.write(f"note: {note}\n")
    sys.stdout.write(f"{Path(__file__).resolve().parent / name}.txt\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
