"""The mpirun command of a job: arguments and environment. Pure."""

from __future__ import annotations

import os
import sys

from popdist.contract import write
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from popdist.poprun.plan.job import Job
    from popdist.poprun.plan.locate import Mpirun
    from popdist.poprun.plan.placement import Instance

FORWARDED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
"""Variables that every instance gets by name, as the original launcher forwards them."""

ONE_HOST = {"HOROVOD_FUSION_THRESHOLD": "0", "HOROVOD_CYCLE_TIME": "0.1"}
"""Horovod's settings for a job on one machine, where the user has set none. Its own defaults suit a
network: inside one machine, copying tensors together costs more than it saves, and waiting a
millisecond for more of them dominates small exchanges (`python -m benchmarks --only exchange`)."""

_ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
_GUARD = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from popdist.poprun.supervision.guard import main; sys.exit(main(sys.argv[1:]))"
)


class Command(Record):
    """What is executed.

    Attributes:
        arguments: mpirun's path and arguments.
        environment: The whole environment of mpirun.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]


def build_command(
    job: Job,
    instances: Sequence[Instance],
    mpirun: Mpirun,
    environ: Mapping[str, str],
    *,
    channel: str,
    session: str,
    as_root: bool,
) -> Command:
    """Builds the command: one application context per instance.

    Args:
        job: The job.
        instances: Its placed instances.
        mpirun: Which mpirun runs it.
        environ: The launcher's environment.
        channel: How guards reach the launcher, as ``pipe=<path>`` or ``token=<secret>``.
        session: A folder for mpirun's own files, for jobs on this machine. In their usual place,
            those that a killed mpirun has left stop a later one that gets the same process number
            (seen with Open MPI 5).
        as_root: Whether the launcher runs as root, which mpirun must be told.

    Returns:
        The command. Values of ``-x NAME=VALUE`` go into mpirun's environment and are forwarded by
        name, so that they never stand on a command line that others can read.
    """
    here = {mpirun.dialect.session_variable: session, **ONE_HOST} if job.is_local else {}
    environment = {**here, **environ}
    environment.update({k: v for k, v in job.variables.items() if v is not None})
    names = [name for name in FORWARDED if name in environment]
    names += [name for name in job.variables if name not in names]
    forwarded = tuple(word for name in names for word in ("-x", name))
    neighbours: dict[str, int] = {}
    for one in instances:
        neighbours[one.host.name] = neighbours.get(one.host.name, 0) + 1
    words = [mpirun.path, *job.global_args, "--bind-to", "none", *mpirun.dialect.oversubscribe]
    if as_root:
        words.append("--allow-run-as-root")
    for one in instances:
        if one.index:
            words.append(":")
        words += ["-np", "1"]
        if not job.is_local:
            words += ["--host", one.host.name]
        for name, value in write(one.fields).items():
            words += ["-x", f"{name}={value}"]
        for name, value in one.variables.items():
            words += ["-x", f"{name}={value}"]
        words += [*forwarded, *job.local_args, *job.instance_args.get(one.index, ())]
        words += [sys.executable, "-I", "-S", "-c", _GUARD, _ROOT]
        words += _guard_settings(job, one, neighbours[one.host.name], channel)
        words += ["--", *_escape_colons(job.program)]
    return Command(tuple(words), environment)


def _guard_settings(job: Job, one: Instance, neighbours: int, channel: str) -> list[str]:
    only = job.only_output_from
    shown = only is None or only == one.index
    settings = [f"index={one.index}", channel, f"show={int(shown)}"]
    settings += _place_settings(job, one, neighbours)
    if job.terminal_size:
        settings.append(f"size={job.terminal_size}")
    if job.tag_output:
        settings.append("tag=1")
    if shown and (job.num_instances == 1 or only is not None):
        settings.append("eager=1")  # no other line can be broken by an unfinished one
    if job.output_folder:
        settings.append(f"files={os.path.abspath(job.output_folder)}")
    if ":" in job.program:
        settings.append(f"colon={_stand_in(job.program)}")
    return settings


def _place_settings(job: Job, one: Instance, neighbours: int) -> list[str]:
    """What `popdist.poprun.machines.binding.place_of` needs to know on the instance's host."""
    numa = int(job.binding.applies(neighbours))
    local = one.fields["local_instance_index"]
    settings = [f"neighbours={neighbours}", f"local={local}", f"numa={numa}"]
    if one.host.cpus is not None:
        settings.append(f"granted={one.host.cpus}")
    if one.cpus:
        settings.append(f"cpus={one.cpus}")
    return settings


def _stand_in(program: Sequence[str]) -> str:
    """A word for a lone colon, which mpirun would take for the start of another program."""
    word = "<colon>"
    while word in program:
        word = f"<{word}>"
    return word


def _escape_colons(program: Sequence[str]) -> list[str]:
    return [_stand_in(program) if word == ":" else word for word in program]
