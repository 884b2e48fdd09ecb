"""Asks the interpreters that a process starts for a part of popdist, by their environment."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping

FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs milliseconds
"""The folder on ``PYTHONPATH`` whose `sitecustomize` loads the parts."""

PARTS = "POPDIST_STARTUP"
"""Names the parts, with commas."""

SDK_NAMES, TENSORFLOW1, DDP = "sdk", "tf1", "ddp"
FRAMEWORKS, STACKS = "frameworks", "stacks"

_INSTEAD = {SDK_NAMES: TENSORFLOW1, TENSORFLOW1: SDK_NAMES}


def enable(environ: MutableMapping[str, str], part: str) -> None:
    """Asks for a part, in place; what else stands in ``environ`` stays.

    Args:
        environ: Such as ``os.environ``.
        part: `SDK_NAMES`, or `TENSORFLOW1` in its place, for the SDK's names; `DDP` for popdist's
            exchange in DistributedDataParallel; `FRAMEWORKS` to note what a program trains;
            `STACKS` to let the guard see an interpreter's stacks.
    """
    parts = [asked for asked in environ.get(PARTS, "").split(",") if asked]
    environ[PARTS] = ",".join(
        [*(asked for asked in parts if asked not in (part, _INSTEAD.get(part))), part]
    )
    folders = [folder for folder in environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    environ["PYTHONPATH"] = os.pathsep.join(
        [FOLDER, *(folder for folder in folders if folder != FOLDER)]
    )
