"""Starts Pythons, with the SDK's names or without, and virtual environments for them."""

import os
import subprocess
import sys
import venv
from pathlib import Path

from popdist.startup.environment import SDK_NAMES, enable

ROOT = Path(__file__).resolve().parents[3]
NAMES = ("-m", "popdist.sdk")


def python(*words, executable=sys.executable, cwd=None, env=None, **options):
    """Runs a Python that finds this checkout, and gives what it did."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    return subprocess.run(
        [str(word) for word in (executable, *words)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=environment,
        timeout=240,
        **options,
    )


def with_names(**variables):
    """An environment in which Pythons start with the names."""
    environment = {"PYTHONPATH": str(ROOT), **variables}
    enable(environment, SDK_NAMES)
    return environment


def environment(folder, *, knows_popdist=True):
    """Makes a virtual environment; its Python, and the folder of its packages."""
    venv.create(folder, with_pip=False, symlinks=True)
    site = next((Path(folder) / "lib").glob("python3*/site-packages"))
    if knows_popdist:
        (site / "popdist-checkout.pth").write_text(f"{ROOT}\n")
    return Path(folder) / "bin" / "python", site


def passed(ended):
    """The output of a Python that ended well."""
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
