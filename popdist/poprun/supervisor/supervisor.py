"""Runs a command under supervision: starts it, hears it out, and leaves nothing of it behind."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from time import monotonic

from popdist.poprun.guard.guard import KILL_NOW
from popdist.poprun.protocol import parent_death
from popdist.poprun.protocol.processes import process_start, send, send_group
from popdist.poprun.supervisor.outcome import Outcome
from popdist.poprun.supervisor.relay import Relay
from popdist.poprun.supervisor.termination import GUARDS_LAST_WORD, Conductor
from popdist.poprun.supervisor.watchdog import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from popdist.poprun.log import Log
    from popdist.poprun.plan.command import Command
    from popdist.poprun.plan.job import Job
    from popdist.poprun.plan.placement import Instance
    from popdist.poprun.supervisor.job_folder import JobFolder
    from popdist.poprun.supervisor.status_line import Status

    Handlers = dict[int, Callable[[bytes], None]]


# Passes the launcher's standard input on to instance 0, its end included.


_READ_SIZE = 1 << 16
_STDIN = 0


class Keyboard:
    """Reads the launcher's standard input and writes it to a pipe, never blocking.

    mpirun could do it, but Open MPI 5 keeps the end of the input to itself.

    Args:
        path: The pipe that instance 0's guard has open before it reports its start.
    """

    def __init__(self, path: str) -> None:
        # Open for reading too, so that there is no end before there is a beginning.
        self._fd: int | None = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._pending = b""

    def may_read(self) -> bool:
        """Whether there is room, and the terminal, if it is one, belongs to this process."""
        if self._fd is None or self._pending:
            return False
        try:
            return not os.isatty(_STDIN) or os.tcgetpgrp(_STDIN) == os.getpgrp()
        except OSError:
            return False

    @property
    def waits_for(self) -> int | None:
        """The descriptor that has to become writable before more is read; None for none."""
        return self._fd if self._pending else None

    def read(self) -> None:
        """Takes what can be read now."""
        try:
            data = os.read(_STDIN, _READ_SIZE)
        except BlockingIOError:
            return
        except OSError:  # closed, or the terminal has gone
            data = b""
        if data:
            self._pending = data
            self.write()
        else:
            self.close()

    def write(self) -> None:
        """Passes on what is pending, as far as there is room."""
        if self._fd is None:
            return
        try:
            self._pending = self._pending[os.write(self._fd, self._pending) :]
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Ends the program's input."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


_READ_SIZE = 1 << 16
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FROM_THE_TERMINAL = (signal.SIGINT, signal.SIGHUP)


class Supervisor:
    """Runs one job to its end.

    Args:
        log: For the launcher's messages.
        job: The job.
        instances: Its placed instances.
        signals: The signals that are passed on to programs.
        deadline: The moment by which it must have ended; None for none.
        status: The status line.
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
    ) -> None:
        self._log = log
        self._job = job
        self._signals = signals
        self._status = status
        self._outcome = Outcome()
        self._mpirun = 0
        self._is_local = job.is_local
        self._keyboard: Keyboard | None = None
        self._watch = Watch(
            job.limits,
            instances,
            self._outcome,
            deadline=deadline,
            is_local=job.is_local,
            tell=log.remark,
        )
        self._conductor = Conductor(job, self._outcome, self._watch)

    def run(self, command: Command, folder: JobFolder, token: str) -> Outcome:
        """Starts mpirun and stays until nothing of the job is left.

        Args:
            command: What to execute.
            folder: The job's folder; it has pipes where guards are on this machine.
            token: The secret that marks guards' records elsewhere.

        Returns:
            How the job ended.
        """
        self._relay = Relay(
            self._outcome,
            self._log,
            None if self._is_local else token,
            on_word=lambda index: self._watch.hear(index, monotonic()),
            on_note=lambda index, fields: self._watch.note(index, fields, monotonic()),
            before_output=self._status.clear,
        )
        handlers: Handlers = {}
        wake, wake_end = os.pipe()
        os.set_blocking(wake_end, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        previous: dict[int, Any] = {
            number: signal.signal(number, self._conductor.on_interrupt) for number in _INTERRUPTS
        }
        previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        previous |= {
            number: signal.signal(number, self._conductor.on_user) for number in self._signals
        }
        opened = [wake, wake_end]
        began = monotonic()
        self._outcome.began_at = time.time()
        try:
            if folder.pipe is not None and folder.keyboard is not None:
                reader = os.open(folder.pipe, os.O_RDONLY | os.O_NONBLOCK)
                # A writer of our own keeps the pipe from ending between two guards.
                opened += [reader, os.open(folder.pipe, os.O_WRONLY)]
                handlers[reader] = self._relay.on_pipe
                self._keyboard = Keyboard(folder.keyboard)
            opened += self._start(command, handlers, folder)
            self._loop(handlers, wake)
        finally:
            self._sweep()
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
            leashed = [
                sys.executable,
                "-I",
                "-S",
                parent_death.__file__,
                str(os.getpid()),
                folder.path,
            ]
            words = [*leashed, *words]
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
        self._conductor.mpirun = self._mpirun
        self._log.info(f"Waiting for mpirun (PID {self._mpirun})")
        return [out, err]

    def _loop(self, handlers: Handlers, wake: int) -> None:
        poll = select.poll()
        for fd in (*handlers, wake):
            poll.register(fd, select.POLLIN)
        while not self._reap() or self._conductor.has_patience(monotonic()):
            self._watch_keyboard(poll)
            events = poll.poll(self._patience())
            if not events and self._relay.has_work:
                self._relay.work()
            for fd, _ in events:
                if fd == wake:
                    os.read(wake, _READ_SIZE)
                elif fd not in handlers:
                    poll.unregister(fd)
                    self._serve_keyboard(fd)
                elif not _read_once(fd, handlers[fd]):
                    poll.unregister(fd)
            self._conductor.react(self._relay)
            self._status.show(self._outcome, monotonic())
        for fd, handler in handlers.items():
            while select.select([fd], [], [], 0)[0] and _read_once(fd, handler):
                pass
        self._relay.finish()

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
        """Milliseconds until something has to be done; None for when something happens."""
        if self._relay.has_work:
            return 0
        now = monotonic()
        waits = (self._conductor.wait(now), self._watch.wait(now), self._status.wait(now))
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
        """Makes sure that nothing of the job outlives it, whatever has happened to the guards."""
        if self._mpirun and self._outcome.mpirun_code is None:
            send(self._mpirun, signal.SIGKILL)
            os.waitpid(self._mpirun, 0)
        if not self._is_local:
            return
        for one in self._outcome.running():
            send(one.guard, KILL_NOW)
        until = monotonic() + GUARDS_LAST_WORD
        silent = self._outcome.running()
        self._outcome.guard_died = any(not process_start(one.guard) for one in silent)
        while monotonic() < until and any(process_start(one.guard) for one in silent):
            select.select([], [], [], 0.02)
        for one in silent:
            # A program may have ended and left members of its group behind; its number is not
            # given to another process before they are gone.
            if one.began and process_start(one.pid) in (one.began, ""):
                send_group(one.pid, signal.SIGKILL)


def _widen(pipe: int) -> None:
    """Lets a pipe hold as much as the system allows to everybody."""
    import fcntl

    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1 << 20)
    except (OSError, AttributeError):  # a limit of the system, or an older Python
        pass


def _read_once(fd: int, handler: Callable[[bytes], None]) -> bool:
    """Reads and hands on; False at the end of the stream."""
    try:
        data = os.read(fd, _READ_SIZE)
    except BlockingIOError:
        return True
    handler(data)
    return bool(data)
