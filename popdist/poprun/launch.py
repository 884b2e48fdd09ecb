"""Starts a planned job, restarts a failed job where allowed, and writes results and logs."""

from __future__ import annotations

import os
import select
from time import monotonic

from popdist.errors import LaunchError, UsageError
from popdist.poprun.log import say
from popdist.poprun.plan.command import Run, check_lengths, check_open_files, into_file, needs_file
from popdist.poprun.plan.placement import place
from popdist.poprun.protocol.guard_argv import JOB
from popdist.poprun.supervisor.job_folder import Parts, new_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from popdist.poprun.log import Log
    from popdist.poprun.plan.command import Command
    from popdist.poprun.plan.job import Job
    from popdist.poprun.plan.placement import Instance
    from popdist.poprun.protocol.guard_argv import Fronts
    from popdist.poprun.ready import Ready
    from popdist.poprun.supervisor.job_folder import JobFolder
    from popdist.poprun.supervisor.outcome import Outcome
    from popdist.poprun.supervisor.supervisor import Supervisor

_INTERRUPTED = 130
_LAST_WORD_SECONDS = 1.0

PAUSE_SECONDS = 1.0
"""Seconds between the end of a job and its next start."""


def rehearse(job: Job, build: Callable[[Run], Command]) -> Command:
    """Performs the checks of a launch for a dry run, without leaving files.

    The command has a placeholder for the job's private folder.

    Raises:
        UsageError: As `Launch` raises it.
        LaunchError: As `Launch` raises it, or the kernel or mpirun cannot take the command.
    """
    signals = _signals(job)
    _kept_files(job)
    has_groups = _check_this_machine(job)
    if job.display.log_dir:
        from popdist.poprun.output.run_folder import check_folder

        check_folder("--log-dir", job.display.log_dir)
    new_folder(is_local=job.is_local, has_one_guard=job.has_one_guard).remove()
    command = build(
        Run(
            None if job.has_one_guard else "pipe=<folder>/pipe",
            "<folder>/mpi",
            fronts="<folder>" if job.has_one_guard else None,
            keyboard="<folder>/stdin",
            signals=signals,
            has_groups=has_groups,
        )
    )
    _as_started(command, "/folder/contexts", os.sysconf("SC_ARG_MAX"))
    return command


def _check_this_machine(job: Job) -> bool:
    """Checks what the job needs here; returns whether its instances get control groups."""
    if job.is_local:
        check_open_files(job.num_instances, has_one_guard=job.has_one_guard)
    return job.limits.control_groups is not False and _check_groups(job)


def _check_groups(job: Job) -> bool:
    is_wanted = job.limits.control_groups
    if job.limits.allow_daemons or not job.is_local:
        if not is_wanted:
            return False
        raise UsageError(
            "PD101",
            "--control-groups is for jobs on one machine whose daemons end with them",
            value="--allow-daemons yes" if job.limits.allow_daemons else "several hosts",
            hint="leave out --control-groups",
        )
    from popdist.poprun.protocol.control_group import check

    try:
        check()
    except OSError as error:
        if not is_wanted:
            return False
        raise LaunchError(
            "PD126",
            f"no control group can be made for the job: {error.strerror or error}",
            value=error.filename,
            accepted="control groups of version 2 in which poprun may make others (Linux 5.14)",
            hint="systemd-run --user --scope -p Delegate=yes poprun ..., or no --control-groups",
        ) from None
    return True


def _as_started(command: Command, contexts: str, room: int) -> tuple[Command, str]:
    """The command as the kernel takes it, and the text of its file, if any."""
    text = ""
    if needs_file(command, room):
        command, text = into_file(command, contexts)
    check_lengths(command, room)
    return command, text


class Launch:
    """A job that is about to be started.

    Args:
        job: The job.
        ready: Its machines, with the placed instances.
        build: Makes the command for one start of a job with its instances.
        log: For the launcher's messages.

    Raises:
        UsageError: ``--forward-signals`` names a signal that cannot be passed on.
        LaunchError: A place for logs or results cannot be written.
    """

    def __init__(
        self,
        job: Job,
        ready: Ready,
        build: Callable[[Job, tuple[Instance, ...], Run], Command],
        log: Log,
    ) -> None:
        self._whole = job, ready.instances
        self._job = job
        self._instances = ready.instances
        self._ready = ready
        self._build = build
        self._log = log
        self._signals = _signals(job)
        self._has_groups = _check_this_machine(job)
        self._deadline = monotonic() + job.limits.timeout if job.limits.timeout else None
        self._files = _kept_files(job)
        self._logs = _run_folder(job)
        self._attempts: list[Outcome] = []
        self._placed: list[tuple[Instance, ...]] = []
        self._mpirun = ""
        self._parts: Parts | None = None
        self._supervisor: Supervisor | None = None

    def run(self) -> int:
        """Runs the job to its end, and returns the exit code."""
        timelines: str | None = None
        try:
            while True:
                folder = new_folder(
                    is_local=self._job.is_local, has_one_guard=self._job.has_one_guard
                )
                try:
                    timelines = self._timeline_folder(folder)
                    outcome = self._attempt(folder, timelines)
                    self._attempts.append(outcome)
                    self._placed.append(self._instances)
                    self._report(outcome)
                    self._keep_timeline(timelines, outcome)
                finally:
                    folder.remove()
                    if self._supervisor is not None:
                        self._supervisor.release()
                    if self._has_groups:  # a guard that was killed leaves them
                        from popdist.poprun.protocol.control_group import end_job

                        end_job(os.path.basename(folder.path), _LAST_WORD_SECONDS)
                if not self._goes_on(outcome):
                    break
        except KeyboardInterrupt:  # between two starts
            self._keep_result()
            return _INTERRUPTED
        self._keep_result()
        return outcome.exit_code

    def _attempt(self, folder: JobFolder, timelines: str | None) -> Outcome:
        # A dry run loads this module too, and needs none of these.
        from popdist.poprun.output.status_line import Status, wants_color
        from popdist.poprun.supervisor.supervisor import Supervisor

        job, token = self._job, os.urandom(8).hex()
        restart = len(self._attempts)
        run = Run(
            channel=None if job.has_one_guard else _channel(folder, token),
            fronts=folder.path if job.has_one_guard else None,
            session=folder.session,
            keyboard=folder.keyboard,
            logs=self._logs_of(restart),
            timeline=timelines,
            colored=wants_color(job.display.color, os.environ, 1),
            restart=restart,
            signals=self._signals,
            has_groups=self._has_groups,
        )
        command = self._build(job, self._instances, run)
        self._mpirun = command.head[0]
        settings = dict(word.split("=", 1) for word in command.contexts[0].settings)
        contexts = os.path.join(folder.path, "contexts")
        command, text = _as_started(command, contexts, os.sysconf("SC_ARG_MAX"))
        if text:
            with open(contexts, "x", encoding="ascii") as file:
                file.write(text)
        if job.verbosity:
            from popdist.poprun.secrets import hide_words

            quoted = " ".join(f"'{word}'" for word in hide_words(command.arguments))
            self._log.info(f"Running command: {quoted}")
        hosts = len({one.host.name for one in self._instances})
        status = Status(job.display.status, job.num_instances, hosts, restart)
        self._log.before = status.clear
        self._supervisor = Supervisor(
            self._log,
            job,
            self._instances,
            signals=self._signals,
            deadline=self._deadline,
            status=status,
            guard_host=_guard_host(settings) if job.has_one_guard else None,
        )
        outcome = self._supervisor.run(command, folder, token)
        self._compare_ends(outcome)
        if outcome.lost_proxy and not job.limits.allow_daemons:
            # On this host, poprun has adopted what is left.
            silent = [self._instances[one.index].host for one in outcome.running()]
            others = {host.name for host in silent if not host.is_local}
            if others:
                self._ready.clear(sorted(others), f"{JOB}={run.name}")
        return outcome

    def _compare_ends(self, outcome: Outcome) -> None:
        """Compares what programs have trained, once all of them have ended well."""
        has_trained = any(one.trained for one in outcome.instances.values())
        if not has_trained or self._job.num_instances == 1 or outcome.exit_code:
            return
        from popdist.poprun.supervisor.training_end import apart, diverged, unconnected

        messages = [unconnected(outcome, self._job.num_instances)]
        if self._job.limits.check_weights:
            outcome.diverged = diverged(outcome)
            messages.append(apart(outcome, self._job.num_instances))
        for message in filter(None, messages):
            self._log.remark(message)

    def _goes_on(self, outcome: Outcome) -> bool:
        done, most = len(self._attempts) - 1, self._job.limits.max_restarts
        if done >= most:
            return False
        from popdist.poprun.supervisor.outcome import may_restart

        if not may_restart(outcome):
            return False
        self._log.remark(f"restart {done + 1} of {most} in {PAUSE_SECONDS:g} s")
        select.select([], [], [], PAUSE_SECONDS)
        return self._job.limits.min_instances is None or self._fits_hosts()

    def _fits_hosts(self) -> bool:
        """Adapts the job to the hosts that answer; False where too few instances remain."""
        from popdist.poprun.plan.fewer_hosts import without_hosts

        job, instances = self._whole
        lost = self._ready.hosts_lost()
        reasons = "".join(f"\n  {host}: {why}" for host, why in lost.items())
        here = without_hosts(job, instances, lost)
        if here is None:
            least = job.limits.min_instances
            self._log.remark(
                f"no restart: without {', '.join(lost)} there are fewer than {least} "
                f"instances, as --min-instances asks{reasons}"
            )
            return False
        self._job, self._instances = here, instances if here is job else place(here)
        if lost:
            self._log.remark(
                f"restarting without {', '.join(lost)}: {here.num_instances} of "
                f"{job.num_instances} instances have all {job.num_replicas} replicas{reasons}"
            )
        return True

    def _report(self, outcome: Outcome) -> None:
        if not (outcome.exit_code or outcome.unwritten):
            return
        from popdist.poprun.output.failure_report import failure_report
        from popdist.poprun.output.status_line import RED, painted, wants_color

        logs = self._logs_of(len(self._attempts) - 1)
        only = self._job.only_output_from
        program = self._job.program
        report = failure_report(outcome, self._instances, logs, only=only, program=program)
        if report:
            wanted = wants_color(self._job.display.color, os.environ, 2)
            first, *rest = report.splitlines()
            say("\n".join([painted(first, RED, wanted=wanted), *rest]))

    def _logs_of(self, restart: int) -> str | None:
        return f"{self._logs}/restart.{restart}" if self._logs and restart else self._logs

    def _timeline_folder(self, folder: JobFolder) -> str | None:
        if self._files["timeline"] is None:
            return None
        if self._job.is_local:
            return folder.path
        self._parts = Parts(f"{self._files['timeline']}.parts")  # visible to other hosts too
        return self._parts.path

    def _keep_timeline(self, timelines: str | None, outcome: Outcome) -> None:
        path = self._files["timeline"]
        if path is None or timelines is None:
            return
        from popdist.poprun.output.timeline import merge_timelines, write_timeline

        try:
            events, recorded = merge_timelines(timelines, self._instances, outcome)
            write_timeline(path, events)
        except OSError as error:
            say(f"poprun: the timeline cannot be written: {error}")
            return
        finally:
            if self._parts is not None:
                self._parts.remove()
        if not recorded:
            say("poprun: Horovod has recorded no timeline: the job exchanged nothing")

    def _keep_result(self) -> None:
        paths = [self._files["json"]] if self._files["json"] else []
        paths += [f"{self._logs}/job.json"] if self._logs else []
        if not paths or not self._attempts:
            return
        from popdist.poprun.output.result_json import write_result

        try:
            for path in paths:
                write_result(
                    path,
                    self._job,
                    self._instances,
                    self._attempts,
                    mpirun=self._mpirun,
                    logs=self._logs,
                    timeline=self._files["timeline"],
                    placed=self._placed,
                )
        except OSError as error:
            say(f"poprun: the result cannot be written: {error}")


def _channel(folder: JobFolder, token: str) -> str:
    return f"pipe={folder.pipe}" if folder.pipe else f"token={token}"


def _guard_host(settings: dict[str, str]) -> Callable[[int, Fronts, int], None]:
    """What the guard of this machine's programs does, which loads its modules by itself."""

    def run(mpirun: int, fronts: Fronts, reports: int) -> None:
        from popdist.poprun.guard.host import guard_host

        guard_host(settings, mpirun, fronts, reports)

    return run


def _signals(job: Job) -> tuple[int, ...]:
    from popdist.poprun.plan.signals import parse_signals

    return parse_signals(job.limits.forward_signals, local=job.is_local)


def _kept_files(job: Job) -> dict[str, str | None]:
    wanted = {"json": job.display.json, "timeline": job.display.timeline}
    if not any(wanted.values()):
        return dict.fromkeys(wanted)
    from popdist.poprun.output.run_folder import check_writable

    return {
        name: check_writable(f"--{name}", path) if path else None for name, path in wanted.items()
    }


def _run_folder(job: Job) -> str | None:
    if not job.display.log_dir:
        return None
    from popdist.poprun.output.run_folder import make_run_folder

    return make_run_folder(job.display.log_dir, job.program[0])
