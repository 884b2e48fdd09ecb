"""The ``poprun`` command: the pipeline from arguments to exit code."""

from __future__ import annotations

import errno
import os
import sys

from popdist.errors import LaunchError, PopdistError
from popdist.poprun.log import Log, open_standard_streams, say, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

    from popdist.poprun.machines.find_mpirun import Mpirun
    from popdist.poprun.options.parser import CommandLine
    from popdist.poprun.plan.command import Command, Run
    from popdist.poprun.plan.job import Job
    from popdist.poprun.plan.placement import Instance
    from popdist.poprun.ready import Ready

USAGE_EXIT_CODE = 2
INTERRUPTED_EXIT_CODE = 130

SUBCOMMANDS = {
    "doctor": "popdist.poprun.doctor.session",
    "partitions": "popdist.poprun.partitions.listing",
}
"""Subcommands by first word; ``poprun -- doctor`` starts a program of that name."""
_MAY_BE_SECRET = ("token", "secret", "pass", "pwd", "cred", "auth", "bearer", "cookie", "key", "@")
_ANSWERED = {"help", "version", "completion"}


def run() -> NoReturn:
    """The command: runs the launcher, and exits with its exit code.

    The process skips the interpreter's regular exit, which costs milliseconds.
    """
    code = main()
    try:
        sys.stdout.flush()
    except OSError:  # its reader has gone away
        pass
    os._exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the launcher; None means this process's command line.

    The exit code is 0, the first failed instance's exit code (128 + the number of a signal), 130 or
    143 after an interrupt, or 2 for a mistake on the command line.
    """
    open_standard_streams()
    hide_secrets_of_command_line()
    try:
        return launch(sys.argv[1:] if arguments is None else arguments)
    except PopdistError as error:
        from popdist.poprun.secrets import hide

        say(f"poprun: {hide(str(error))}")
        return USAGE_EXIT_CODE
    except OSError as error:
        known = _shortage(error)
        if known is None:
            raise
        say(f"poprun: {known}")
        return USAGE_EXIT_CODE
    except KeyboardInterrupt:  # while a job is planned; later the supervisor handles signals
        return INTERRUPTED_EXIT_CODE


def hide_secrets_of_command_line() -> None:
    """Removes secrets from this process's command line in process lists, where there may be any."""
    text = " ".join(sys.argv).lower()
    if any(part in text for part in _MAY_BE_SECRET):  # else without the time of an import
        from popdist.poprun.secrets import hide_own_arguments

        try:
            hide_own_arguments()
        except OSError:  # not Linux, or a sandbox forbids it
            pass


def _check_working_directory() -> None:
    """Checks that the working directory, in which programs start, exists.

    Raises:
        LaunchError: It was removed.
    """
    try:
        os.getcwd()
    except OSError as error:
        raise LaunchError(
            "PD119",
            f"the working directory cannot be used: {error.strerror}",
            value=os.environ.get("PWD", ""),
            accepted="a directory that exists, in which programs start",
            hint="cd to a directory that exists",
        ) from None


def _shortage(error: OSError) -> LaunchError | None:
    """What this machine lacks; None for other errors."""
    if error.errno == errno.EAGAIN:
        from popdist.poprun.supervisor.shortage import process_shortage

        return process_shortage(1, was_refused=True)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        from popdist.poprun.supervisor.job_folder import unusable

        return unusable(error.strerror)
    return _too_many_files() if error.errno == errno.EMFILE else None


def _too_many_files() -> LaunchError:
    import resource

    return LaunchError(
        "PD117",
        "the limit of open files is too low for this job",
        value=f"{resource.getrlimit(resource.RLIMIT_NOFILE)[0]} open files",
        accepted="a file for each device of a partition, a pipe for each instance, and some more",
        hint="ulimit -n 65536",
    )


def launch(arguments: Sequence[str]) -> int:
    """Runs the launcher and returns the exit code; the caller prints the errors.

    Raises:
        PopdistError: The command line is wrong, or the job cannot be started.
    """
    if arguments and arguments[0] in SUBCOMMANDS:
        from importlib import import_module

        code: int = import_module(SUBCOMMANDS[arguments[0]]).main(arguments[1:])
        return code
    from popdist.poprun.options.parser import parse

    line = parse(arguments, os.environ)
    if _ANSWERED & line.given:
        from popdist.poprun.options.help import answer

        text = answer(line)
        if text is not None:
            show(text)
            return 0
    for note in line.notes:
        say(f"poprun: {note}")
    if line.values["export-config"] is not None:
        from popdist.poprun.options.serialize import export_config

        overwrite = bool(line.values["overwrite-config"])
        export_config(line, str(line.values["export-config"]), overwrite=overwrite)
        if not line.program:
            return 0

    from popdist.poprun.plan.job import make_job

    _check_working_directory()
    return _run(make_job(line, os.environ), line)


def _run(job: Job, line: CommandLine) -> int:
    """Does with a job what the command line asks for."""
    nodes: Any = line.values["nnodes"]
    if nodes > 1:
        from popdist.poprun.nodes.meeting import take_part
        from popdist.poprun.plan.job import make_job

        return take_part(line, lambda line: _launch(make_job(line, os.environ), line))
    if line.values["emit"] is not None:
        from popdist.poprun.plan.kubernetes import manifest
        from popdist.poprun.plan.placement import place

        show(manifest(line, job, place(job)))
        return 0
    if line.values["compare-alone"] is not None:
        from popdist.poprun.compare_alone import compare_alone

        updates: Any = line.values["compare-alone"]
        return compare_alone(job, updates, lambda job: _launch(job, line))
    return _launch(job, line)


def _launch(job: Job, line: CommandLine) -> int:
    from popdist.poprun.machines.find_mpirun import locate_mpirun
    from popdist.poprun.plan.job import check_alone, check_user, remarks
    from popdist.poprun.ready import Ready

    log = Log(job.verbosity)
    if job.limits.min_instances is not None:
        from popdist.poprun.plan.fewer_hosts import check_min_instances

        check_min_instances(job)
    check_alone(os.environ)
    check_user(job, os.geteuid())
    for remark in remarks(job, os.geteuid()) if job.verbosity else ():
        log.info(remark)
    mpirun = locate_mpirun(os.environ, job.mpirun)
    ready = Ready(job, mpirun, os.environ, log)
    try:
        return _start(job, line, mpirun, ready, log)
    finally:
        ready.release()


def _start(job: Job, line: CommandLine, mpirun: Mpirun, ready: Ready, log: Log) -> int:
    from popdist.poprun.machines.find_mpirun import chooses_transports
    from popdist.poprun.machines.hosts import has_shared_memory
    from popdist.poprun.plan.mpirun import build_command
    from popdist.poprun.plan.rendezvous import rendezvous

    if job.print_topology or job.dry_run or job.verbosity > 1:
        from popdist.poprun.output.topology_table import topology_table

        show(topology_table(ready.shown(job), job.num_ilds))

    has_tcp = job.mpi_tcp
    if has_tcp is None and job.is_local:
        no_room = not has_shared_memory(job.num_instances)
        has_tcp = no_room or chooses_transports(mpirun, os.environ)

    def build(job: Job, instances: tuple[Instance, ...], run: Run) -> Command:
        return build_command(
            job,
            instances,
            mpirun,
            os.environ,
            run=run,
            meeting=rendezvous(job, instances, os.environ),
            as_root=os.geteuid() == 0,
            has_tcp=bool(has_tcp),
        )

    if job.dry_run:
        from popdist.poprun.launch import rehearse
        from popdist.poprun.output.dry_run import dry_run_text

        command = rehearse(job, lambda run: build(job, ready.instances, run))
        show(dry_run_text(line, command, os.environ, room=os.sysconf("SC_ARG_MAX")))
        return 0
    from popdist.poprun.launch import Launch

    return Launch(job, ready, build, log).run()
