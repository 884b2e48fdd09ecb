"""What it costs to have the SDK's names enabled and not to use them, in fresh processes."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from benchmarks.processes import time_commands
from benchmarks.ranks import environment
from benchmarks.rows import Aim, Row, compare
from benchmarks.sampling import Missing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Effort

START_AIM = Aim(sentence="at most 1 ms more than without the names", of="difference", at_most=1.0)

_STATEMENTS = {"pass": "bare Python", "import torch": "", "import tensorflow": ""}


def measure(effort: Effort) -> Iterator[Row]:
    """Starts Pythons with the names and without.

    Args:
        effort: How many times.

    Yields:
        A row for each statement: with the names enabled, against without.
    """
    for statement, name in _STATEMENTS.items():
        is_light = statement == "pass"
        repetitions = (
            effort.choose(full=100, quick=10) if is_light else effort.choose(full=11, quick=3)
        )
        times = time_commands(
            {way: _command(statement, with_names=way == "with") for way in ("with", "without")},
            repetitions,
        )
        yield compare(
            f"{name or statement}, names enabled",
            times["with"],
            unit="ms",
            peer=f"{name or statement}, without",
            against=times["without"],
            aim=START_AIM if is_light else None,
        )


def _command(statement: str, *, with_names: bool) -> list[str] | Missing:
    # Imported here so that choosing a benchmark needs none of what is measured.
    from popdist.startup.environment import PARTS, SDK_NAMES, enable

    env = shutil.which("env")
    if env is None:
        return Missing("there is no `env` that sets variables")
    # Both are started alike, by `env`, so that only the names differ.
    variables = {"PYTHONPATH": environment()["PYTHONPATH"]}
    if with_names:
        enable(variables, SDK_NAMES)
    variables.setdefault(PARTS, "")
    variables["PYTHONDONTWRITEBYTECODE"] = ""
    settings = [f"{name}={value}" for name, value in variables.items()]
    return [env, *settings, sys.executable, "-c", statement]
