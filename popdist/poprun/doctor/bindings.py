"""Horovod's extensions: which there are, and whether they use the library of the right MPI."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from popdist.horovod_build import frameworks
from popdist.horovod_build.programs import answer
from popdist.poprun.doctor.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from popdist.poprun.plan.locate import Mpirun

_LIBRARY = re.compile(r"^\s*(lib\S+) => (\S+)", re.MULTILINE)
_BUILD = "python -m popdist.horovod_build"


def look_at_bindings(
    mpirun: Mpirun | None, environ: Mapping[str, str]
) -> Iterator[tuple[str, Finding]]:
    """Looks at the extension of every installed framework.

    Args:
        mpirun: The mpirun that starts ranks.
        environ: The user's environment, which decides where libraries are found.

    Yields:
        The framework and the finding.
    """
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
    """Compares the MPI library of an extension with the mpirun that starts its ranks.

    Args:
        topic: The binding.
        extension: Its shared library.
        mpirun: The mpirun.
        environ: The user's environment.

    Returns:
        The finding.
    """
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
    # Of one installation are those with one prefix, or those that lie beside mpirun's libraries.
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
    """Libraries of MPI that a file is linked to, by their plain names."""
    linked = _LIBRARY.findall(answer(["ldd", str(file)], environ))
    wanted = ("libmpi", "libopen-rte", "libopen-pal", "libprrte", "libpmix")
    return {
        name.partition(".so")[0]: path
        for name, path in linked
        if name.partition(".so")[0] in wanted and path.startswith("/")
    }
