"""Asks a program a short question, such as for its version."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PATIENCE_S = 20


def answer(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Runs a program that only says something about itself.

    Args:
        command: The program and its arguments.
        environ: The environment it runs in.

    Returns:
        What it printed, errors too; empty where it cannot be run, fails, or does not end.
    """
    try:
        done = subprocess.run(
            list(command),
            env={**environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PATIENCE_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace")
