"""A real job of two ranks, which checks that Horovod works and times an allreduce."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from popdist.errors import PopdistError
from popdist.horovod_build import check
from popdist.poprun.doctor import ranks
from popdist.poprun.doctor.findings import Finding, problem_from
from popdist.poprun.machines.numa import place_of
from popdist.poprun.plan.mpirun import EVERYWHERE, ONE_HOST

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from popdist.poprun.machines.find_mpirun import Mpirun

_PATIENCE_S = 180
_SLOW = 20.0
_TIMED_OUT = 124
_ROOT = Path(__file__).resolve().parents[3]
# Settings of an enclosing launcher, which are not for this job.
_FOREIGN = ("POPRUN_", "POPDIST_", "SLURM_", "PMIX_", "PRTE_", "PMI_", "HYDRA_")


def try_binding(
    framework: str, mpirun: Mpirun, environ: Mapping[str, str], *, measures: bool
) -> Iterator[Finding]:
    """Starts two instances through poprun; the instances reduce known numbers.

    The first finding is whether the binding works and what the binding was built with. With
    ``measures``, a second finding compares an allreduce with a plain copy.
    """
    what = ranks.MEASURE if measures else ranks.CHECK
    code, output, answers = _run(framework, mpirun, environ, what)
    topic = f"horovod.{framework} at work"
    try:
        found = check.judge(framework, code, output, answers)
    except PopdistError as error:
        yield problem_from(topic, error)
        return
    yield Finding(
        topic,
        "ok",
        f"two instances reduced correctly; built with {', '.join(found.abilities)}",
        facts={"version": found.version, "built_with": list(found.abilities)},
    )
    if measures:
        yield judge_times([answer["seconds"] for answer in answers if answer is not None])


def judge_times(seconds: Sequence[Mapping[str, Mapping[str, float]]]) -> Finding:
    """Compares an allreduce with a copy of as many bytes; times are in seconds, by size. Pure."""
    topic = "allreduce of two instances"
    rows, parts = [], []
    for size in ranks.SIZES:
        # An exchange ends when the last rank has the result.
        copy, reduced = (
            max(measured[str(size)][kind] for measured in seconds) for kind in ("copy", "allreduce")
        )
        rows.append({"bytes": size, "copy_s": copy, "allreduce_s": reduced})
        ratio = f" ({reduced / copy:.1f} x copy)" if size > 1 << 16 else ""
        parts.append(f"{_size(size)} {reduced * 1e3:.2f} ms{ratio}")
    text, facts = "; ".join(parts), {"measured": rows}
    if rows[-1]["allreduce_s"] > _SLOW * rows[-1]["copy_s"]:
        return Finding(
            topic,
            "note",
            f"{text}: slow",
            fix="measure again on a quiet machine; then see the findings about shared memory",
            facts=facts,
        )
    return Finding(topic, "ok", text, facts=facts)


def look_at_settings(environ: Mapping[str, str]) -> Finding:
    """Lists the variables that poprun sets for two instances here; the user's values win."""
    place = place_of({"neighbours": "2", "local": "0", "numa": "1"})
    chosen = {**ONE_HOST, **EVERYWHERE, "OMP_NUM_THREADS": str(place.threads)}
    facts = {name: environ.get(name, value) for name, value in chosen.items()}
    shown = [
        f"{name}={value}" + (" (yours)" if name in environ else "") for name, value in facts.items()
    ]
    bound = f"instance 0 bound to {place.share}" if place.binds else "not bound"
    return Finding("settings for two instances", "ok", f"{', '.join(shown)}; {bound}", facts=facts)


def _size(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def _run(
    framework: str, mpirun: Mpirun, environ: Mapping[str, str], what: str
) -> tuple[int | None, str, list[dict[str, Any] | None]]:
    """Exit code (None after the time limit), output, and the answer of each rank."""
    kept = {name: value for name, value in environ.items() if not name.startswith(_FOREIGN)}
    path = os.pathsep.join([str(_ROOT), *filter(None, [environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory(prefix="popdist-doctor-") as folder:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "popdist.poprun", f"--mpirun={mpirun.path}"),
                *(f"--num-instances={check.RANKS}", f"--timeout={_PATIENCE_S}"),
                *(sys.executable, str(Path(ranks.__file__)), framework, folder, what),
            ],
            env={**kept, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        answers = check.read_answers(Path(folder))
    code = None if done.returncode == _TIMED_OUT else done.returncode
    return code, done.stdout.decode(errors="replace"), answers
