"""Passes the SDK's names on to the interpreters that a process starts."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping

FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs milliseconds
"""The folder that enables the names when it is on ``PYTHONPATH``."""


def enable(environ: MutableMapping[str, str]) -> None:
    """Enables the SDK's names in ``environ``, in place; ``PYTHONPATH`` keeps its folders."""
    before = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path != FOLDER]
    environ["PYTHONPATH"] = os.pathsep.join([FOLDER, *before] if any(before) else [FOLDER])
