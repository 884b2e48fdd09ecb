"""The mpirun command of a job: arguments and environment. Pure."""

from __future__ import annotations

import os
import sys

from popdist.contract import write
from popdist.poprun.neighbours.adopt import STANDARD
from popdist.poprun.plan.command import Command, Context
from popdist.poprun.plan.links import TARGET_OPTIONS, target_options
from popdist.poprun.plan.network import network_variables
from popdist.poprun.plan.run import guard_settings, timeline_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from popdist.poprun.plan.job import Job
    from popdist.poprun.plan.locate import Mpirun
    from popdist.poprun.plan.placement import Instance
    from popdist.poprun.plan.run import Run

FORWARDED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
"""Variables that every instance gets by name, as the original launcher forwards them."""

ONE_HOST = {"HOROVOD_FUSION_THRESHOLD": "0", "HOROVOD_CYCLE_TIME": "0.1"}
"""Horovod's settings for a job on one machine, where the user has set none. Its own defaults suit a
network: inside one machine, copying tensors together costs more than it saves, and waiting a
millisecond for more of them dominates small exchanges (`python -m benchmarks --only exchange`)."""

EVERYWHERE = {"OMPI_MCA_mpi_yield_when_idle": "1"}
"""Open MPI's settings for all jobs, where the user has set none. A Horovod thread waits inside MPI
beside each program, and waiting is polling: without this it keeps the processor that computes (with
two instances on two cores, computing took twice as long). It costs exchanges nothing that was
measured."""

_START = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "guard_start.py"))


def build_command(
    job: Job,
    instances: Sequence[Instance],
    mpirun: Mpirun,
    environ: Mapping[str, str],
    *,
    run: Run,
    meeting: Mapping[str, str],
    as_root: bool,
) -> Command:
    """Builds the command: one application context per instance.

    Args:
        job: The job.
        instances: Its placed instances.
        mpirun: Which mpirun runs it.
        environ: The launcher's environment.
        run: This start of the job.
        meeting: The variables by which instances meet (`popdist.poprun.neighbours.rendezvous`).
        as_root: Whether the launcher runs as root, which mpirun must be told.

    Returns:
        The command.
    """
    here = {**EVERYWHERE, **network_variables(job, mpirun.dialect, environ)}
    if job.is_local:
        here |= {mpirun.dialect.session_variable: run.session, **ONE_HOST}
    targets = target_options(job, environ)
    if targets is not None:
        here[TARGET_OPTIONS] = targets
    environment = {**here, **environ, **meeting, **job.variables.environment}
    shared = [name for name in (*FORWARDED, TARGET_OPTIONS) if name in environment]
    shared += meeting
    neighbours: dict[str, int] = {}
    for one in instances:
        neighbours[one.host.name] = neighbours.get(one.host.name, 0) + 1
    nodes = {name: node for node, name in enumerate(neighbours)}
    start = (sys.executable, "-I", "-S", _START)
    contexts = []
    for one in instances:
        options = ["-np", "1"]
        if not job.is_local:
            options += ["--host", one.host.name]
        contract = write({**one.fields, "restart_count": run.restart, "run_folder": run.logs})
        for name, value in {
            **contract,
            **one.variables,
            **_horovod(job, one, run, environment),
        }.items():
            options += ["-x", f"{name}={value}"]
        for name in dict.fromkeys([*shared, *job.variables.names(one.index)]):
            options += ["-x", name]
        options += [*job.local_args, *job.instance_args.get(one.index, ())]
        settings = guard_settings(job, one, run, neighbours[one.host.name])
        settings.append(f"node={nodes[one.host.name]}")
        if kept := STANDARD & job.variables.sets(one.index):
            settings.append(f"keep={','.join(sorted(kept))}")
        contexts.append(Context(tuple(options), start, tuple(settings)))
    return Command(_head(job, mpirun, as_root=as_root), tuple(contexts), job.program, environment)


def _head(job: Job, mpirun: Mpirun, *, as_root: bool) -> tuple[str, ...]:
    """The path of mpirun and its global options."""
    head = [mpirun.path, *job.global_args]
    if not any(word.lstrip("-").startswith("bind-to") for word in job.global_args):
        head += ["--bind-to", "none"]  # guards bind, each by its own host's nodes
    head += mpirun.dialect.oversubscribe
    if as_root:
        head.append("--allow-run-as-root")
    return tuple(head)


def _horovod(job: Job, one: Instance, run: Run, environ: Mapping[str, str]) -> dict[str, str]:
    """What Horovod is told for the sake of ``--stall-timeout`` and ``--timeline``."""
    found = {}
    if job.limits.stall_timeout:
        found["HOROVOD_STALL_CHECK_TIME_SECONDS"] = str(max(1, round(job.limits.stall_timeout)))
    if run.timeline:
        found["HOROVOD_TIMELINE"] = timeline_file(run.timeline, one.index)
        if "HOROVOD_CACHE_CAPACITY" not in environ:
            # With its cache of answers, Horovod records only once who submitted a tensor when.
            found["HOROVOD_CACHE_CAPACITY"] = "0"
    return found
