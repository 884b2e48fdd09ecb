"""Fresh virtual environments that see some distributions of this one, and no others.

Files are linked, not installed again, so that an environment with a framework of hundreds of
megabytes takes a second. What is linked is exactly what pip would install: the closure of the
requirements' own metadata.
"""

import os
import subprocess
import sys
import venv
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement


def fresh_environment(folder, wheel, *extras):
    """Makes an environment with a wheel and the closure of what it requires.

    Args:
        folder: Where the environment goes.
        wheel: The wheel, installed for real.
        *extras: The extras whose requirements are linked too.

    Returns:
        The environment's Python.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    python = Path(folder) / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python,
         "install", "--quiet", "--no-compile", "--no-deps", "--no-index", wheel],
        check=True,
    )  # fmt: skip
    site = next((Path(folder) / "lib").glob("python3*/site-packages"))
    (installed,) = distributions(name="popdist", path=[str(site)])
    for text in installed.requires or ():
        if _applies(Requirement(text), {"", *extras}):
            link(Requirement(text), site, set())
    link(Requirement("pip"), site, set())
    return python


def _applies(requirement, extras):
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)


def link(requirement, site, seen):
    """Links a distribution and what it requires into another environment."""
    if requirement.name in seen:
        return
    seen.add(requirement.name)
    try:
        dist = distribution(requirement.name)
    except PackageNotFoundError:  # optional on this platform
        return
    source = Path(dist.locate_file(""))
    files = dist.files or ()
    for top in {file.parts[0] for file in files if file.parts[0] not in ("..", "bin")}:
        if not (site / top).exists() and (source / top).exists():
            (site / top).symlink_to(source / top)
    for file in files:
        place = Path(os.path.normpath(site / file))
        if file.parts[0] == ".." and not place.exists():  # programs, libraries
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(Path(dist.locate_file(file)).resolve())
    for text in dist.requires or ():
        parsed = Requirement(text)
        if _applies(parsed, requirement.extras or {""}):
            link(parsed, site, seen)
