"""Installs a built wheel, and tells which build is installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from popdist.errors import BuildError

_NAME = "horovod"


def installed() -> str | None:
    """The version of the installed Horovod; its local part is the key of our build.

    Returns:
        Such as ``"0.28.1+popdist.0123456789abcdef"``, or None.
    """
    try:
        return distribution(_NAME).version
    except PackageNotFoundError:
        return None


def identity() -> str:
    """Tells the installation from any other, and from itself after a reinstallation.

    Returns:
        Its place, version and time; empty where there is none.
    """
    try:
        found = distribution(_NAME)
    except PackageNotFoundError:
        return ""
    record = Path(str(found.locate_file(""))) / f"{_NAME}-{found.version}.dist-info" / "RECORD"
    changed = record.stat().st_mtime_ns if record.is_file() else 0
    return f"{record} {found.version} {changed}"


def install(wheel: Path) -> None:
    """Installs a wheel into the running interpreter's environment, in place of any other.

    Args:
        wheel: The file.

    Raises:
        BuildError: pip refuses.
    """
    command = [
        *(sys.executable, "-m", "pip", "install", "--no-deps", "--force-reinstall", "--no-index"),
        *("--disable-pip-version-check", "--no-input", "--quiet", str(wheel)),
    ]
    done = subprocess.run(
        command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines() or ["nothing"]
        raise BuildError(
            "PD205",
            "pip could not install the wheel",
            value=said[-1],
            accepted="an environment that this user may write to",
            hint=f"use a virtual environment, or see what pip says: pip install --no-deps {wheel}",
        )
