"""Fresh virtual environments that see some distributions of this one, and no others.

Files are linked, not installed again, so that an environment with a framework of hundreds of
megabytes takes a second. What is linked is exactly what pip would install: the closure of the
requirements' own metadata.
"""

import subprocess
import sys
import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement


def fresh_environment(folder, wheel, extra=None):
    """Makes an environment with a wheel and the closure of one of its extras.

    Args:
        folder: Where the environment goes.
        wheel: The wheel, installed for real.
        extra: The extra whose requirements are linked, or None for nothing beside the wheel.

    Returns:
        The environment's Python.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    python = Path(folder) / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python,
         "install", "--quiet", "--no-deps", "--no-index", wheel],
        check=True,
    )  # fmt: skip
    site = next((Path(folder) / "lib").glob("python3*/site-packages"))
    if extra is not None:
        for requirement in distribution("popdist").requires or ():
            parsed = Requirement(requirement)
            if parsed.marker is not None and parsed.marker.evaluate({"extra": extra}):
                _link(parsed, site, set())
    return python


def _link(requirement, site, seen):
    if requirement.name in seen:
        return
    seen.add(requirement.name)
    try:
        dist = distribution(requirement.name)
    except PackageNotFoundError:  # optional on this platform
        return
    source = Path(dist.locate_file(""))
    for top in {file.parts[0] for file in dist.files or () if file.parts[0] not in ("..", "bin")}:
        if not (site / top).exists() and (source / top).exists():
            (site / top).symlink_to(source / top)
    for text in dist.requires or ():
        parsed = Requirement(text)
        extras = requirement.extras or {""}
        if parsed.marker is None or any(parsed.marker.evaluate({"extra": e}) for e in extras):
            _link(parsed, site, seen)
