"""The ``poprun`` command: the pipeline from arguments to exit code."""

from __future__ import annotations

import os
import sys

from popdist.errors import PopdistError
from popdist.poprun.log import Log, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist.poprun.plan.job import Job
    from popdist.poprun.plan.mpirun import Command

USAGE_EXIT_CODE = 2


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
        say(f"poprun: {error}")
        return USAGE_EXIT_CODE


def _run(arguments: Sequence[str]) -> int:
    from popdist.poprun.command.parser import parse

    line = parse(arguments)
    if line.values["help"]:
        from popdist.poprun.command.help import help_text

        sys.stdout.write(help_text() + "\n")
        return 0
    if line.values["version"]:
        from popdist._version import __version__

        sys.stdout.write(f"poprun {__version__}\n")
        return 0

    from popdist.poprun.plan.job import make_job

    return _launch(make_job(line, os.environ))


def _launch(job: Job) -> int:
    from popdist.poprun.plan.locate import locate_mpirun
    from popdist.poprun.plan.mpirun import build_command
    from popdist.poprun.plan.placement import HERE, place
    from popdist.poprun.seeing.report import failure_report
    from popdist.poprun.supervision.supervise import JobFolder, Supervisor

    log = Log(job.verbosity)
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
        _show(build("pipe=<folder>/pipe", "<folder>/mpi"))
        return 0
    token = os.urandom(16).hex()
    folder = JobFolder(os.environ.get("TMPDIR", "/tmp"), with_pipe=job.is_local)  # noqa: S108
    channel = f"pipe={folder.pipe}" if folder.pipe else f"token={token}"
    try:
        command = build(channel, folder.session)
        quoted = " ".join(f"'{word}'" for word in command.arguments)
        log.info(f"Running command: {quoted}")
        outcome = Supervisor(log, job.num_instances).run(command, pipe=folder.pipe, token=token)
    finally:
        folder.remove()
    if report := failure_report(outcome, instances):
        say(report)
    return outcome.exit_code


def _show(command: Command) -> None:
    """Prints what would be executed, with the variables that are set for it."""
    import shlex

    added = command.environment.items() - os.environ.items()
    sys.stdout.writelines(f"{name}={shlex.quote(value)} \\\n" for name, value in sorted(added))
    sys.stdout.write(shlex.join(command.arguments) + "\n")
