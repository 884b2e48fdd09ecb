"""``--compare-alone``: runs a program as a job and alone, and compares the weights of both.

The program alone is one process with one replica. Its batch has to be the job's global batch. A
program that divides a global batch by the number of processes has it by itself. Where the inputs
show that the program alone has trained on a fraction of the job's samples, as its batch size is
that of one process, it is run once more, with batches that are as many times larger. A
``trainingModel`` is given the batches of the job. If it trains another model with them, it is run
once more with the job's replicas, to tell a loss whose parts do not add up from a wrong exchange.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from popdist.errors import UsageError
from popdist.poprun.log import say, show
from popdist.poprun.plan.mpi_arguments import Variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from popdist.comparison import Comparison
    from popdist.poprun.plan.job import Job


def compare_alone(job: Job, updates: int, launch: Callable[[Job], int]) -> int:
    """Runs a job and its program alone, prints the comparison, and returns the exit code.

    Args:
        job: The job.
        updates: How many updates are compared.
        launch: Runs a job, and returns its exit code.

    Returns:
        0 where all weights are equal, 1 where they differ, 2 where the two cannot be compared; the
        exit code of a run that has failed.

    Raises:
        UsageError: The job cannot be compared.
    """
    _require_comparable(job)
    if job.dry_run:
        return launch(job)
    folder = Path(tempfile.mkdtemp(prefix="popdist-compare-"))
    try:
        return _compared(job, updates, launch, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _compared(job: Job, updates: int, launch: Callable[[Job], int], folder: Path) -> int:
    from popdist.comparison import Run, compare, missing_scale, with_replicas

    def run(
        name: str, which: Job, what: str, *, scale: int = 1, merges: bool = True
    ) -> tuple[int, Run]:
        home = folder / name
        home.mkdir()
        plan = {
            "updates": updates,
            "scale": scale,
            "merges": merges,
            "job": None if which is job else str(folder / "job"),
        }
        (home / "plan.json").write_text(json.dumps(plan), "utf-8")
        say(f"poprun: comparing {updates} update{'s' * (updates > 1)}: {what}")
        return launch(_recorded(which, home)), Run(home)

    code, whole = run("job", job, f"the job of {job.num_instances} instances")
    if code:
        return code
    alone = _alone(job)
    code, single = run("alone", alone, "the program alone")
    found = None if code else compare(whole, single)
    scale = 1 if code else missing_scale(whole, single)
    if whole.keeps_calls:
        if found is None or found.exit_code == 1:
            what = f"the program alone, with the job's {job.num_replicas} replicas"
            again, several = run("replicas", alone, what, merges=False)
            if again:
                return again
            found = with_replicas(found, compare(whole, several))
    elif found is not None and not found.is_equal and scale > 1:
        what = f"the program alone, with batches that are {scale} times larger"
        code, single = run("larger", alone, what, scale=scale)
        found = None if code else compare(whole, single, scale)
    if found is None:
        return code
    show(str(found))
    if job.display.json:
        _write(job.display.json, found)
    return found.exit_code


def _recorded(job: Job, folder: Path) -> Job:
    """A job whose programs record into a folder."""
    display = type(job.display)(**{**vars(job.display), "json": None})
    limits = type(job.limits)(**{**vars(job.limits), "max_restarts": 0, "min_instances": None})
    changes = {"compare_folder": str(folder), "display": display, "limits": limits}
    return type(job)(**{**vars(job), **changes})


def _alone(job: Job) -> Job:
    """The program of a job in one process."""
    given = job.variables
    variables = Variables(given.forwarded, {**given.common, **given.single.get(0, {})})
    changes = {
        "num_instances": 1,
        "num_replicas": 1,
        "compare_replicas": job.num_replicas,
        "num_ilds": 1,
        "variables": variables,
        "instance_args": {},
        "only_output_from": None,
    }
    return type(job)(**{**vars(job), **changes})


def _require_comparable(job: Job) -> None:
    if job.is_local and job.num_instances > 1:
        return
    raise UsageError(
        "PD101",
        "--compare-alone compares a job of several instances on this machine with its program "
        "alone",
        value=f"{job.num_instances} instances on {len(job.hosts) or 1} hosts",
        accepted="--num-instances of 2 or more, without other hosts",
        hint="poprun -np 2 --compare-alone=3 python train.py; two instances show what more would",
    )


def _write(path: str, found: Comparison) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(found.as_json(), file, indent=2)
        file.write("\n")
