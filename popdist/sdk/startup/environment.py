"""Passes folders with a `sitecustomize` on to the interpreters that a process starts."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs milliseconds
"""The folder that enables the names when it is on ``PYTHONPATH``."""


VERSION1 = os.path.join(FOLDER, "version1")  # noqa: PTH118 - as above
"""The folder that does so with TensorFlow 1's interface."""


DDP = f"{FOLDER.removesuffix('/sdk/startup')}/ddp_startup"
"""The folder that makes DistributedDataParallel use popdist's exchange."""

WATCH = f"{FOLDER.removesuffix('/sdk/startup')}/poprun/startup"
"""The folder that notices when a program imports a framework."""


def enable(environ: MutableMapping[str, str], *, version1: bool = False) -> None:
    """Enables the SDK's names in ``environ``, in place; ``PYTHONPATH`` keeps its folders."""
    put_first(environ, VERSION1 if version1 else FOLDER, known=(FOLDER, VERSION1))


def put_first(environ: MutableMapping[str, str], folder: str, known: Sequence[str]) -> None:
    """Puts a folder on the ``PYTHONPATH`` of ``environ``, in place of those that are known."""
    before = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path not in known]
    environ["PYTHONPATH"] = os.pathsep.join([folder, *before] if any(before) else [folder])
