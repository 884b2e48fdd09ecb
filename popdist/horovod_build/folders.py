"""Where popdist keeps what it has made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def default_folder(environ: Mapping[str, str]) -> Path:
    """The cache of all of popdist, unless the user chooses another.

    Args:
        environ: The environment.

    Returns:
        The folder, which need not exist.
    """
    if environ.get("POPDIST_CACHE_DIR"):
        return Path(environ["POPDIST_CACHE_DIR"])
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "popdist"
    return Path(environ.get("HOME") or Path.home()) / ".cache" / "popdist"
