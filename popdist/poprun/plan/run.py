"""One start of a job: what its guards and mpirun need to know beyond the job itself."""

from __future__ import annotations

import os

from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from popdist.poprun.plan.job import Job
    from popdist.poprun.plan.placement import Instance

_COLORS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
"""Colours of a terminal that stay readable on dark and on light ground; red is for failures."""


class Run(Record):
    """One start of a job.

    Attributes:
        channel: How guards reach the launcher, as ``pipe=<path>`` or ``token=<secret>``.
        session: A folder for mpirun's own files. In their usual place, those that a killed mpirun
            has left stop a later one that gets the same process number (seen with Open MPI 5).
        keyboard: The pipe that passes on the launcher's standard input; None to leave it to mpirun.
        logs: A folder for the output of each instance, or None.
        timeline: A folder for Horovod's timelines, or None.
        colored: Whether tags are coloured.
        restart: How often the job was started before.
        signals: The signals that are passed on to programs.
    """

    channel: str
    session: str
    keyboard: str | None = None
    logs: str | None = None
    timeline: str | None = None
    colored: bool = False
    restart: int = 0
    signals: tuple[int, ...] = ()


def guard_settings(job: Job, one: Instance, run: Run, neighbours: int) -> list[str]:
    """The words by which a guard is told how to behave.

    Args:
        job: The job.
        one: The guard's instance.
        run: This start of the job.
        neighbours: How many instances its host has.

    Returns:
        ``name=value`` words.
    """
    only = job.only_output_from
    shown = only is None or only == one.index
    settings = [f"index={one.index}", run.channel, f"show={int(shown)}"]
    settings += _place_settings(job, one, neighbours)
    settings += _limit_settings(job)
    if run.signals:
        settings.append(f"signals={'+'.join(str(number) for number in run.signals)}")
    if job.terminal_size:
        settings.append(f"size={job.terminal_size}")
    if job.tag_output:
        settings.append("tag=1")
    if run.colored:
        settings.append(f"color={_COLORS[one.index % len(_COLORS)]}")
    if shown and (job.num_instances == 1 or only is not None):
        settings.append("eager=1")  # no other line can be broken by an unfinished one
    if job.sdk_names:
        settings.append("names=1")
    if job.output_folder:
        settings.append(f"files={os.path.abspath(job.output_folder)}")
    if run.logs:
        settings.append(f"logs={run.logs}")
    if run.keyboard and one.index == 0:
        settings.append(f"stdin={run.keyboard}")
    return settings


def _limit_settings(job: Job) -> list[str]:
    limits = job.limits
    settings = [f"grace={limits.grace_period:g}"]
    if limits.timeout or limits.stall_timeout:
        settings.append("stacks=1")
    if limits.stall_timeout:
        settings.append(f"stall={limits.stall_timeout:g}")
    if not job.is_local:
        settings.append(f"heartbeat={limits.host_timeout:g}")
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
    return [*settings, *one.holds]


def timeline_file(folder: str, index: int) -> str:
    """Where an instance's Horovod is told to write its timeline.

    Args:
        folder: The folder for timelines.
        index: The instance.

    Returns:
        The path.
    """
    return f"{folder}/timeline.{index}.json"
