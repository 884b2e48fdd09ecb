"""The ``poprun`` command: the pipeline from arguments to exit code."""

from __future__ import annotations

import os
import sys

from popdist.errors import PopdistError
from popdist.poprun.log import Log, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist.poprun.command.parser import CommandLine
    from popdist.poprun.plan.job import Job
    from popdist.poprun.plan.mpirun import Command

USAGE_EXIT_CODE = 2
_ANSWERED = {"help", "version", "completion"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the launcher.

    Args:
        arguments: The command line without the command's name; None for this process's.

    Returns:
        0, the exit code of the first instance that failed (128 + the number of a signal),
        130 or 143 after an interrupt, or 2 for a mistake on the command line.
    """
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    except PopdistError as error:
        from popdist.poprun.secrets import hide

        say(f"poprun: {hide(str(error))}")
        return USAGE_EXIT_CODE


def _run(arguments: Sequence[str]) -> int:
    from popdist.poprun.command.parser import parse

    line = parse(arguments, os.environ)
    if _ANSWERED & line.given:
        from popdist.poprun.command.answers import answer

        text = answer(line)
        if text is not None:
            sys.stdout.write(text + "\n")
            return 0
    for note in line.notes:
        say(f"poprun: {note}")
    if line.values["export-config"] is not None:
        from popdist.poprun.command.export import export_config

        overwrite = bool(line.values["overwrite-config"])
        export_config(line, str(line.values["export-config"]), overwrite=overwrite)
        if not line.program:
            return 0

    from popdist.poprun.plan.job import make_job

    return _launch(make_job(line, os.environ), line)


def _launch(job: Job, line: CommandLine) -> int:
    from popdist.poprun.plan.locate import locate_mpirun
    from popdist.poprun.plan.mpirun import build_command
    from popdist.poprun.plan.placement import HERE, place

    log = Log(job.verbosity)
    if job.allocation is not None:
        from popdist.poprun.machines.slurm import unused_tasks

        if note := unused_tasks(job.allocation, job.num_instances):
            say(f"poprun: {note}")
    instances = place(job)
    mpirun = locate_mpirun(os.environ, job.mpirun)
    if job.print_topology or job.dry_run or job.verbosity > 1:
        from popdist.poprun.machines.cpus import usable_cpus, usable_nodes
        from popdist.poprun.plan.numa_labels import label_numa
        from popdist.poprun.seeing.topology_table import topology_table

        here = {host.name for host in (*job.hosts, HERE) if host.is_local}
        shown = label_numa(
            job, instances, lambda name: usable_nodes(usable_cpus()) if name in here else ()
        )
        sys.stdout.write(topology_table(shown) + "\n")
        sys.stdout.flush()

    def build(channel: str, session: str) -> Command:
        as_root = os.geteuid() == 0
        return build_command(
            job, instances, mpirun, os.environ, channel=channel, session=session, as_root=as_root
        )

    if job.dry_run:
        from popdist.poprun.seeing.dry_run import dry_run_text

        command = build("pipe=<folder>/pipe", "<folder>/mpi")
        sys.stdout.write(dry_run_text(line, command, os.environ))
        return 0
    from popdist.poprun.seeing.report import failure_report
    from popdist.poprun.supervision.supervise import JobFolder, Supervisor

    token = os.urandom(16).hex()
    folder = JobFolder(os.environ.get("TMPDIR", "/tmp"), with_pipe=job.is_local)  # noqa: S108
    channel = f"pipe={folder.pipe}" if folder.pipe else f"token={token}"
    try:
        command = build(channel, folder.session)
        if job.verbosity:
            from popdist.poprun.secrets import hide_words

            quoted = " ".join(f"'{word}'" for word in hide_words(command.arguments))
            log.info(f"Running command: {quoted}")
        outcome = Supervisor(log, job.num_instances).run(command, pipe=folder.pipe, token=token)
    finally:
        folder.remove()
    if report := failure_report(outcome, instances):
        say(report)
    return outcome.exit_code
