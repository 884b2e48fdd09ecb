"""Runs a command under supervision: starts it, relays its reports, and ends its processes."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` adds enums, for 5 ms
import os
import select
import sys
import time
from time import monotonic

from popdist.poprun.protocol.processes import (
    adopt_orphans,
    children_of,
    is_readable,
    kill_descendants,
    kill_group,
    process_start,
    send,
    watchable,
)
from popdist.poprun.protocol.signals import KILL_NOW
from popdist.poprun.supervisor.outcome import START_CODE, Ending, Outcome
from popdist.poprun.supervisor.relay import Keyboard, Relay
from popdist.poprun.supervisor.termination import GUARDS_LAST_WORD, Termination
from popdist.poprun.supervisor.watchdog import Watchdog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from popdist.poprun.log import Log
    from popdist.poprun.output.status_line import Status
    from popdist.poprun.plan.command import Command
    from popdist.poprun.plan.job import Job
    from popdist.poprun.plan.placement import Instance
    from popdist.poprun.protocol.guard_argv import Fronts
    from popdist.poprun.supervisor.job_folder import JobFolder

    Handlers = dict[int, Callable[[bytes], None]]


_READ_SIZE = 1 << 16
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FROM_THE_TERMINAL = (signal.SIGINT, signal.SIGHUP)
_KEEPER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "keeper.py")


class Supervisor:
    """Runs one job to its end.

    Args:
        log: For the launcher's messages.
        job: The job.
        instances: Its placed instances.
        signals: The signals that are passed on to programs.
        deadline: The moment by which it must have ended; None for none.
        status: The status line.
        guard_host: Guards all programs in the calling process, with mpirun's process, the pipes to
            fronts and the pipe to the launcher; None where each program has a guard of its own.
    """

    def __init__(
        self,
        log: Log,
        job: Job,
        instances: tuple[Instance, ...],
        *,
        signals: tuple[int, ...],
        deadline: float | None,
        status: Status,
        guard_host: Callable[[int, Fronts, int], None] | None,
    ) -> None:
        self._log = log
        self._job = job
        self._signals = signals
        self._status = status
        self._outcome = Outcome()
        self._mpirun = 0
        self._guard = 0
        self._reports = -1
        self._guard_host = guard_host
        self._is_local = job.is_local
        self._keyboard: Keyboard | None = None
        self._watchdog = Watchdog(
            job.limits,
            instances,
            self._outcome,
            deadline=deadline,
            is_local=job.is_local,
            tell=log.remark,
        )
        self._termination = Termination(job, self._outcome, self._watchdog)

    def run(self, command: Command, folder: JobFolder, token: str) -> Outcome:
        """Starts mpirun, waits for the end of all processes of the job, and returns the outcome.

        ``folder`` has pipes where guards are on this machine; ``token`` marks guards' records on
        other hosts.
        """
        shows_several = self._job.num_instances > 1 and self._job.only_output_from is None
        self._relay = Relay(
            self._outcome,
            self._log,
            None if self._is_local else token,
            on_word=lambda index: self._watchdog.hear(index, monotonic()),
            on_note=lambda index, fields: self._watchdog.note(index, fields, monotonic()),
            before_output=self._status.clear,
            merges=shows_several,
            shows_repeats=not shows_several or self._job.display.repeated_output == "all",
            expected=self._job.num_instances if self._is_local else 0,
            has_tcp=command.has_tcp,
        )
        handlers: Handlers = {}
        others = children_of(os.getpid())
        adopts = not self._job.limits.allow_daemons and adopt_orphans()
        wake, wake_end = os.pipe()
        os.set_blocking(wake_end, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        previous: dict[int, Any] = {
            number: signal.signal(number, self._termination.on_interrupt)
            for number in _INTERRUPTS
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN  # nohup
        }
        previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        previous |= {
            number: signal.signal(number, self._termination.on_user) for number in self._signals
        }
        opened = [wake, wake_end]
        began = monotonic()
        self._outcome.began_at = time.time()
        try:
            if folder.keyboard is not None:
                self._keyboard = Keyboard(folder.keyboard)
            if folder.pipe is not None:
                reader = os.open(folder.pipe, os.O_RDONLY | os.O_NONBLOCK)
                # A writer in this process prevents an end of file between two guards.
                opened += [reader, os.open(folder.pipe, os.O_WRONLY)]
                handlers[reader] = self._relay.on_pipe
            if self._guard_host is None:
                opened += self._start(command, handlers, folder)
            else:
                opened += self._start_guarded(self._guard_host, command, handlers, folder)
            self._loop(handlers, wake)
        finally:
            self._sweep()
            if adopts:
                kept = {*others, self._guard}
                kill_descendants(GUARDS_LAST_WORD, lambda child: child not in kept)
                adopt_orphans(wanted=False)
            self._status.clear()
            if self._keyboard is not None:
                self._keyboard.close()
            for number, handler in previous.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(-1)
            for fd in opened:
                os.close(fd)
        self._outcome.seconds = monotonic() - began
        return self._outcome

    def _start(self, command: Command, handlers: Handlers, folder: JobFolder) -> list[int]:
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        _widen(err)
        handlers[out], handlers[err] = self._relay.on_stdout, self._relay.on_stderr
        words = list(command.arguments)
        actions: list[tuple[Any, ...]] = [
            (os.POSIX_SPAWN_DUP2, out_end, 1),
            (os.POSIX_SPAWN_DUP2, err_end, 2),
        ]
        if self._is_local:
            actions.append((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0))
        else:
            keeper = (sys.executable, "-I", "-S", _KEEPER, str(os.getpid()), folder.path)
            words = [*keeper, *words]
        self._mpirun = os.posix_spawn(
            words[0],
            words,
            command.environment,
            file_actions=actions,
            # mpirun stays in the terminal's foreground group, so that it may read the keyboard for
            # instance 0; the interrupts of that terminal are for the launcher alone.
            setsigmask=_FROM_THE_TERMINAL,
        )
        os.close(out_end)
        os.close(err_end)
        self._termination.mpirun = self._mpirun
        self._log.info(f"Waiting for mpirun (PID {self._mpirun})")
        return [out, err]

    def _start_guarded(
        self,
        guard_host: Callable[[int, Fronts, int], None],
        command: Command,
        handlers: Handlers,
        folder: JobFolder,
    ) -> list[int]:
        """Starts mpirun, and the guard of this machine, which gets ready in the meantime."""
        fronts = folder.open_fronts(self._job.num_instances)
        reports, reports_end = os.pipe()
        _widen(reports)
        handlers[reports] = self._relay.on_guard
        opened = self._start(command, handlers, folder)
        self._guard = os.fork()
        if self._guard == 0:
            try:
                guard_host(self._mpirun, fronts, reports_end)
            except Exception:  # noqa: BLE001 - a child never returns; the launcher sees its end
                import traceback

                traceback.print_exc()
            finally:
                os._exit(0)
        fronts.close()
        os.close(reports_end)
        self._reports = reports  # the guard takes its end for that of this process
        return opened

    def _loop(self, handlers: Handlers, wake: int) -> None:
        poll = select.poll()
        for fd in (*handlers, wake):
            poll.register(fd, select.POLLIN)
        while not self._reap() or self._termination.has_patience(monotonic()):
            self._watch_keyboard(poll)
            events = poll.poll(self._patience())
            if not events and self._relay.has_work:
                self._relay.work()
            for fd in self._reports_first([fd for fd, _ in events], handlers):
                if fd == wake:
                    os.read(wake, _READ_SIZE)
                elif fd not in handlers:
                    poll.unregister(fd)
                    self._serve_keyboard(fd)
                elif not _read_once(fd, handlers[fd]):
                    poll.unregister(fd)
            self._explain_refusal()
            self._termination.react(self._relay)
            self._relay.show_due(monotonic())
            self._status.show(self._outcome, monotonic())
        self._finish(handlers)

    def _finish(self, handlers: Handlers) -> None:
        """Reads what is left after mpirun's end."""
        for fd, handler in handlers.items():
            while is_readable(fd, 0.0) and _read_once(fd, handler):
                pass
        if self._outcome.mpirun_code and self._is_local:
            self._explain_start()
        self._relay.finish()

    def _explain_refusal(self) -> None:
        if self._outcome.was_refused:
            self._explain_start()

    def _explain_start(self) -> None:
        """Ends a job that could not be started with the cause, where it is known."""
        from popdist.poprun.supervisor.shortage import process_shortage

        outcome, count = self._outcome, self._job.num_instances
        if len(outcome.instances) == count and not outcome.was_refused:
            return
        # mpirun ends the instances that it has started where it cannot start another.
        if outcome.is_over_without_mpirun:
            return
        cause = process_shortage(count, was_refused=outcome.was_refused)
        if cause is not None:
            text, *lines = str(cause).splitlines()
            self._termination.end(Ending("start", START_CODE, text, tuple(lines)))

    def _reports_first(self, ready: list[int], handlers: Handlers) -> list[int]:
        """Leaves mpirun's words for later while a report may decide whether to show them."""
        guards = self._relay.on_pipe, self._relay.on_guard
        if not any(handlers.get(fd) in guards for fd in ready):
            return ready
        return [fd for fd in ready if handlers.get(fd) != self._relay.on_stderr]

    def _watch_keyboard(self, poll: select.poll) -> None:
        """Waits for input once instance 0's guard holds the other end of the pipe."""
        keyboard, first = self._keyboard, self._outcome.instances.get(0)
        if keyboard is None or first is None:
            return
        if first.ended:
            keyboard.close()
        elif keyboard.waits_for is not None:
            poll.register(keyboard.waits_for, select.POLLOUT)
        elif keyboard.may_read():
            poll.register(0, select.POLLIN)

    def _serve_keyboard(self, fd: int) -> None:
        if self._keyboard is not None:
            self._keyboard.read() if fd == 0 else self._keyboard.write()

    def _patience(self) -> float | None:
        """Milliseconds until the next action is due; None to wait for an event."""
        if self._relay.has_work:
            return 0
        now = monotonic()
        parts = (self._termination, self._watchdog, self._status, self._relay)
        waits = [part.wait(now) for part in parts]
        known = [wait for wait in waits if wait is not None]
        return max(0.0, min(known)) * 1000 if known else None

    def _reap(self) -> bool:
        if self._outcome.mpirun_code is not None:
            return True
        pid, status = os.waitpid(self._mpirun, os.WNOHANG)
        if not pid:
            return False
        code = os.waitstatus_to_exitcode(status)
        self._outcome.mpirun_code = code
        self._log.info(f"mpirun (PID {self._mpirun}) terminated with exit code {code}")
        return True

    def _sweep(self) -> None:
        """Kills remaining processes of the job, whatever the state of the guards is."""
        if self._mpirun and self._outcome.mpirun_code is None:
            send(self._mpirun, signal.SIGKILL)
            os.waitpid(self._mpirun, 0)
        if not self._is_local:
            return
        for guard in {one.guard for one in self._outcome.running()}:
            send(guard, KILL_NOW)
        until = monotonic() + GUARDS_LAST_WORD
        silent = self._outcome.running()
        self._outcome.guard_died |= any(not process_start(one.guard) for one in silent)
        while monotonic() < until and any(process_start(one.guard) for one in silent):
            select.select([], [], [], 0.02)
        for one in silent:
            # A program may have ended and left members of its group behind; its number is not
            # given to another process before they are gone.
            if one.began and process_start(one.pid) in (one.began, ""):
                kill_group(one.pid)
        if silent:
            self.release()

    def release(self) -> None:
        """Ends the guard of this machine, which removes the job's folder if poprun is killed."""
        guard, self._guard = self._guard, 0
        if guard:
            send(guard, KILL_NOW)
            is_readable(watchable(guard), GUARDS_LAST_WORD)
            send(guard, signal.SIGKILL)
            os.waitpid(guard, 0)
            os.close(self._reports)


def _widen(pipe: int) -> None:
    """Sets a pipe to the largest size that the system allows."""
    import fcntl

    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1 << 20)
    except (OSError, AttributeError):  # a limit of the system, or an older Python
        pass


def _read_once(fd: int, handler: Callable[[bytes], None]) -> bool:
    """Reads and passes the bytes on; False at the end of the stream."""
    try:
        data = os.read(fd, _READ_SIZE)
    except BlockingIOError:
        return True
    handler(data)
    return bool(data)
