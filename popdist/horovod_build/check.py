"""Checks that an installed Horovod works: a real allreduce between two ranks, per framework."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from popdist.backend import launch
from popdist.errors import BuildError
from popdist.horovod_build import ranks
from popdist.horovod_build.diagnose import explain_check

if TYPE_CHECKING:
    from collections.abc import Mapping

    from popdist.horovod_build.facts import Mpi

RANKS = 2
_PATIENCE_S = 240
# A launcher's variables would make mpirun believe that it runs inside that launcher's job. Settings
# of Open MPI's own (OMPI_MCA_*) stay, unless an enclosing mpirun has set them.
_FOREIGN = ("PMIX_", "PRTE_", "PMI_", "HYDRA_", "SLURM_", "POPDIST_")


@dataclass(frozen=True)
class Checked:
    """The result of a check.

    Attributes:
        framework: The binding, by its module's name in Horovod.
        version: The version that the framework reports.
        device: The device of the data, ``"cpu"`` or ``"cuda"``.
        abilities: The features of the build, such as ``("MPI", "Gloo")``.
    """

    framework: str
    version: str
    device: str
    abilities: tuple[str, ...]


def check(framework: str, mpi: Mpi, environ: Mapping[str, str], *, nccl: bool = False) -> Checked:
    """Runs two ranks that reduce different data, and compares the results with the known sums.

    Raises:
        BuildError: The ranks failed, timed out, did not connect, or got wrong sums.
    """
    with tempfile.TemporaryDirectory(prefix="popdist-check-") as folder:
        code, output = _run(command(framework, mpi, Path(folder)), environment(environ))
        answers = read_answers(Path(folder))
    return judge(framework, code, output, answers, nccl=nccl)


def read_answers(folder: Path) -> list[dict[str, Any] | None]:
    """The answer of each rank in ``folder``; None for a missing answer."""
    return [_answer(folder / str(rank)) for rank in range(RANKS)]


def command(framework: str, mpi: Mpi, folder: Path) -> list[str]:
    """The command that starts the ranks, valid for Open MPI 4.1 and 5."""
    return [
        *(str(mpi.mpirun), "-np", str(RANKS), "--host", f"localhost:{RANKS}", "--bind-to", "none"),
        *(sys.executable, str(Path(ranks.__file__)), framework, str(folder)),
    ]


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the check.

    Other launchers' variables are removed. The rest allows both versions of Open MPI to start two
    ranks on any machine, as root too.
    """
    nested = launch(environ).by in {"poprun", "mpirun"}
    dropped = (*_FOREIGN, "OMPI_") if nested else _FOREIGN
    kept = {name: value for name, value in environ.items() if not name.startswith(dropped)}
    return {
        **kept,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_plm": "isolated",  # Open MPI 4 does not start without an ssh client else
        # Containers often forbid ranks to read each other's memory; Open MPI then prints many
        # warnings before it copies through shared memory.
        "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


def judge(
    framework: str,
    code: int | None,
    output: str,
    answers: list[dict[str, Any] | None],
    *,
    nccl: bool = False,
) -> Checked:
    """Decides from exit code (None after the time limit), output and answers. Pure.

    Raises:
        BuildError: The check failed.
    """
    name = f"horovod.{framework}"
    if code is None:
        raise BuildError(
            "PD203",
            f"{name}: two ranks did not finish an allreduce within {_PATIENCE_S} s",
            value=output.strip()[-300:] or "no output",
            accepted="an answer from both",
            hint="see whether the machine is overloaded, and run with --check again",
        )
    given = [answer for answer in answers if answer is not None]
    if any(answer["size"] != RANKS for answer in given):
        raise BuildError(
            "PD203",
            f"{name}: the ranks came up alone",
            value=f"sizes {[answer['size'] for answer in given]}",
            accepted=f"size {RANKS} in every rank",
            hint="mpirun and the library that Horovod loads are of different MPIs; unset "
            "LD_LIBRARY_PATH, or build again: python -m popdist.horovod_build --force",
        )
    if code != 0 or len(given) != RANKS:
        why = explain_check(output)
        raise BuildError(
            "PD203", f"{name}: {why.what}", value=why.seen, accepted=why.accepted, hint=why.hint
        )
    wrong = [answer["sums"] for answer in given if answer["sums"] != ranks.expected(RANKS)]
    if wrong:
        raise BuildError(
            "PD203",
            f"{name}: an allreduce gave wrong sums",
            value=wrong[0],
            accepted=str(ranks.expected(RANKS)),
            hint="build again: python -m popdist.horovod_build --force",
        )
    abilities = tuple(given[0]["abilities"])
    if nccl and "NCCL" not in abilities:
        raise BuildError(
            "PD203",
            f"{name} was built without NCCL",
            value=", ".join(abilities),
            accepted="NCCL among the abilities",
            hint="build again: python -m popdist.horovod_build --with-nccl --force",
        )
    return Checked(framework, str(given[0]["version"]), str(given[0]["device"]), abilities)


def _run(command: list[str], environment: Mapping[str, str]) -> tuple[int | None, str]:
    with subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=_PATIENCE_S)
        except BaseException as problem:
            # SIGTERM lets mpirun end its ranks, which have sessions of their own.
            os.killpg(process.pid, signal.SIGTERM)
            try:
                output, _ = process.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
            if not isinstance(problem, subprocess.TimeoutExpired):
                raise
            return None, output.decode(errors="replace")
    return process.returncode, output.decode(errors="replace")


def _answer(file: Path) -> dict[str, Any] | None:
    try:
        answer: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return answer
