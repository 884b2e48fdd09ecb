"""Finds the programs that are measured: those of this Python environment, not of another."""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path


def beside_python(name: str) -> str | None:
    """Finds a program of this Python environment.

    Args:
        name: Its name.

    Returns:
        Its path; None where this environment has none. A program of another environment elsewhere
        in PATH would measure other code.
    """
    path = Path(sys.executable).parent / name
    return str(path) if path.is_file() else None


def find_mpirun() -> str | None:
    """Finds the mpirun of this Python environment, or else that of the system.

    Returns:
        Its path; None where there is none.
    """
    return beside_python("mpirun") or shutil.which("mpirun")


def find_poprun() -> list[str] | None:
    """Finds the launcher: as installed, or else as the checkout has it.

    Returns:
        The start of a command line; None where there is none.
    """
    installed = beside_python("poprun")
    if installed is not None:
        return [installed]
    if find_spec("popdist.poprun.__main__") is not None:
        return [sys.executable, "-m", "popdist.poprun"]
    return None
