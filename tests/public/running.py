"""Runs one program in one process, and as a job of two instances, and collects what it trained."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.public.environments import served

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.public.manifest import Program

ROOT = Path(__file__).resolve().parents[2]
OBSERVER = ROOT / "tests" / "programs" / "observer"
STANDINS = Path(__file__).parent / "standins"
DATA = Path(__file__).parent / "data.py"


@dataclass
class Run:
    """What one run of a program gave.

    Attributes:
        instances: The number of instances.
        code: The exit code; None if the limit of time was reached.
        output: Standard output and error.
        ranks: What the observer recorded of each rank: ``updates``, ``losses``, ``digests``,
            ``finite``, ``moved``.
    """

    instances: int
    code: int | None
    output: str
    ranks: list[dict[str, Any]] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """All but the output, for the record."""
        return {key: value for key, value in asdict(self).items() if key != "output"}


def run(
    program: Program,
    sources: Path,
    python: Path,
    room: Path,
    instances: int,
    poprun: Sequence[str] = (),
) -> Run:
    """Runs a program in a fresh copy of its folders.

    Args:
        program: The program.
        sources: The user's folder of checkouts: ``OWNER/REPOSITORY/TAG``.
        python: The interpreter.
        room: A folder for the copy and for records; it is emptied.
        instances: 1 or 2.
        poprun: More options of poprun, for two instances.

    Returns:
        The run. Its output is also in ``room/output.txt``.
    """
    shutil.rmtree(room, ignore_errors=True)
    observed = room / "observed"
    observed.mkdir(parents=True)
    checkout = sources / program.repository / program.tag
    for part in (program.place, *program.beside):
        _copy(checkout / part, room / "copy" / part)
    folder = room / "copy" / program.place
    environment = _environment(program, python, observed)
    with (room / "output.txt").open("w+") as output:
        for words in program.prepare:
            prepare = [str(python), str(DATA), *words.split()]
            code = call(prepare, folder, environment, output, program.limit)
            if code != 0:
                break
        else:
            code = call(
                _words(program, python, instances, poprun),
                folder,
                environment,
                output,
                program.limit,
            )
        output.seek(0)
        text = output.read()
    found = [json.loads(path.read_text()) for path in observed.glob("*.json")]
    return Run(instances, code, text, sorted(found, key=lambda one: one["rank"]))


def _words(program: Program, python: Path, instances: int, poprun: Sequence[str]) -> list[str]:
    if instances == 1:
        return [str(python), "-m", "popdist.sdk", *program.command, *program.alone]
    launcher = [sys.executable, "-m", "popdist.poprun", "--sdk-names", *program.poprun, *poprun]
    launcher += [f"--num-instances={instances}", f"--num-replicas={instances}"]
    return [*launcher, str(python), *program.command, *program.job]


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    else:
        shutil.copy2(source, target)


def _environment(program: Program, python: Path, observed: Path) -> dict[str, str]:
    """The variables of a run: nothing is downloaded, and nothing is written into a home."""
    home = observed.parent / "home"
    home.mkdir()
    packages = [observed.parent / "copy" / folder for folder in program.path]
    return {
        **environment_of(python, home, [OBSERVER, STANDINS, *packages]),
        "OBSERVED": str(observed),
        "OBSERVED_WORKERS": "2",
        **_seeded(program.seed),
        **_shortened(program),
        **program.variables,
    }


def environment_of(python: Path, home: Path, path: list[Path]) -> dict[str, str]:
    """The variables of a quiet process.

    Args:
        python: The interpreter.
        home: The folder that the process writes into in place of the user's.
        path: Folders that are imported from, before the project.

    Returns:
        The variables.
    """
    tools = [str(python.parent), str(Path(sys.executable).parent), "/usr/local/bin:/usr/bin:/bin"]
    return {
        **os.environ,
        "PATH": os.pathsep.join(tools),
        "PYTHONPATH": os.pathsep.join(map(str, (*path, served()))),
        "HOME": str(home),
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "MPLBACKEND": "agg",
        "USE_TF": "0",  # transformers would import it
        "TF_CPP_MIN_LOG_LEVEL": "3",
        **_open_mpi(),
    }


def _open_mpi() -> dict[str, str]:
    """Where Open MPI's files are, for a program of another environment that imports mpi4py."""
    if not Path(sys.prefix, "bin", "orted").exists():
        return {}
    return {"OPAL_PREFIX": sys.prefix, "MPI4PY_LIBMPI": f"{sys.prefix}/lib/libmpi.so.40"}


def _seeded(seed: int | None) -> dict[str, str]:
    if seed is None:
        return {}
    options = json.dumps({"randomSeed": seed})
    return {"OBSERVED_SEED": str(seed), "POPTORCH_DEFAULT_OPTIONS": options}


def _shortened(program: Program) -> dict[str, str]:
    numbers = {"OBSERVED_ROWS": program.rows, "OBSERVED_STEPS": program.steps}
    return {name: str(number) for name, number in numbers.items() if number is not None}


def call(
    words: list[str], folder: Path, environment: dict[str, str], output: Any, limit: int
) -> int | None:
    """Calls a command in a session of its own, which is ended at the limit."""
    process = subprocess.Popen(
        words,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)  # poprun ends its instances
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
