"""Runs a command under supervision: the only module that starts, signals and kills."""

from __future__ import annotations

import os
import select
import signal
import sys
from time import monotonic

from popdist.poprun.supervision import leash
from popdist.poprun.supervision.guard import GRACE_SECONDS, KILL_NOW
from popdist.poprun.supervision.outcome import Outcome
from popdist.poprun.supervision.processes import process_start, send, send_group
from popdist.poprun.supervision.relay import Relay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

    from popdist.poprun.log import Log
    from popdist.poprun.plan.mpirun import Command
    from popdist.poprun.supervision.outcome import InstanceRecord

    Handlers = dict[int, Callable[[bytes], None]]

_READ_SIZE = 1 << 16
_GUARDS_LAST_WORD = 1.0
_MPIRUNS_LAST_WORD = 3.0  # it takes up to two seconds to clean up after a program that was killed
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FROM_THE_TERMINAL = (signal.SIGINT, signal.SIGHUP)


class JobFolder:
    """A private folder for the job's pipe and for mpirun's own files, removed at the end.

    Args:
        parent: The folder for temporary files.
        with_pipe: Whether guards are on this machine and can reach a pipe.

    Attributes:
        pipe: The job's pipe, or None.
        session: Where mpirun may keep its files.
    """

    def __init__(self, parent: str, *, with_pipe: bool) -> None:
        # tempfile does the same for a quarter of the launcher's time budget.
        self.path = os.path.join(parent, f"poprun-{os.urandom(8).hex()}")
        os.mkdir(self.path, 0o700)
        self.pipe = os.path.join(self.path, "pipe") if with_pipe else None
        if self.pipe is not None:
            os.mkfifo(self.pipe, 0o600)
        self.session = os.path.join(self.path, "mpi")

    def remove(self) -> None:
        """Removes the folder and all that is in it."""
        if self.pipe is not None:
            os.unlink(self.pipe)
        try:
            os.rmdir(self.session)
            os.rmdir(self.path)
        except OSError:  # a killed mpirun has not cleaned up
            import shutil

            shutil.rmtree(self.path, ignore_errors=True)


class Supervisor:
    """Runs one job to its end.

    Args:
        log: For the launcher's messages.
        num_instances: How many instances will report.
    """

    def __init__(self, log: Log, num_instances: int) -> None:
        self._log = log
        self._num_instances = num_instances
        self._outcome = Outcome()
        self._mpirun = 0
        self._kill_at: float | None = None
        self._is_local = True

    def run(self, command: Command, *, pipe: str | None, token: str) -> Outcome:
        """Starts mpirun and stays until nothing of the job is left.

        Args:
            command: What to execute.
            pipe: The job's pipe; None where guards speak through mpirun's streams.
            token: The secret that marks their records there.

        Returns:
            How the job ended.
        """
        self._is_local = pipe is not None
        self._relay = Relay(self._outcome, self._log, token if pipe is None else None)
        handlers: Handlers = {}
        wake, wake_end = os.pipe()
        os.set_blocking(wake_end, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        previous = {number: signal.signal(number, self._on_interrupt) for number in _INTERRUPTS}
        previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        opened = [wake, wake_end]
        try:
            if pipe is not None:
                reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
                # A writer of our own keeps the pipe from ending between two guards.
                opened += [reader, os.open(pipe, os.O_WRONLY)]
                handlers[reader] = self._relay.on_pipe
            opened += self._start(command, handlers)
            self._loop(handlers, wake)
        finally:
            self._sweep()
            for number, handler in previous.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(-1)
            for fd in opened:
                os.close(fd)
        return self._outcome

    def _start(self, command: Command, handlers: Handlers) -> list[int]:
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        handlers[out], handlers[err] = self._relay.on_stdout, self._relay.on_stderr
        words = list(command.arguments)
        if not self._is_local:
            words = [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), *words]
        self._mpirun = os.posix_spawn(
            words[0],
            words,
            command.environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, out_end, 1), (os.POSIX_SPAWN_DUP2, err_end, 2)],
            # mpirun stays in the terminal's foreground group, so that it may read the keyboard for
            # instance 0; the interrupts of that terminal are for the launcher alone.
            setsigmask=_FROM_THE_TERMINAL,
        )
        os.close(out_end)
        os.close(err_end)
        self._log.info(f"Waiting for mpirun (PID {self._mpirun})")
        return [out, err]

    def _loop(self, handlers: Handlers, wake: int) -> None:
        poll = select.poll()
        for fd in (*handlers, wake):
            poll.register(fd, select.POLLIN)
        while not self._reap():
            for fd, _ in poll.poll(self._patience()):
                if fd == wake:
                    os.read(wake, _READ_SIZE)
                elif not _read_once(fd, handlers[fd]):
                    poll.unregister(fd)
            self._react()
        for fd, handler in handlers.items():
            while select.select([fd], [], [], 0)[0] and _read_once(fd, handler):
                pass
        self._relay.finish()

    def _patience(self) -> float | None:
        return None if self._kill_at is None else max(0.0, self._kill_at - monotonic()) * 1000

    def _reap(self) -> bool:
        pid, status = os.waitpid(self._mpirun, os.WNOHANG)
        if not pid:
            return False
        code = os.waitstatus_to_exitcode(status)
        self._outcome.mpirun_code = code
        self._log.info(f"mpirun (PID {self._mpirun}) terminated with exit code {code}")
        return True

    def _react(self) -> None:
        """Draws the consequences of what has become known."""
        outcome = self._outcome
        if outcome.interrupted:  # the interrupt came while these were on their way
            self._signal_guards(self._relay.started, signal.SIGTERM)
        self._relay.started.clear()
        if self._relay.closed and not outcome.interrupted:
            self._interrupt(signal.SIGPIPE)
        if self._kill_at is None and not outcome.forced:
            # mpirun ends by itself after a failure and after the last instance; if it should not,
            # the job must not hang.
            ended = sum(one.ended for one in outcome.instances.values())
            if outcome.first_failure is not None or ended == self._num_instances:
                self._kill_at = monotonic() + GRACE_SECONDS + _MPIRUNS_LAST_WORD
        if self._kill_at is not None and monotonic() >= self._kill_at:
            outcome.forced = True
            self._kill_at = None
            send(self._mpirun, signal.SIGKILL)  # guards see its end and kill their programs

    def _on_interrupt(self, number: int, _frame: FrameType | None) -> None:
        if not self._outcome.interrupted:
            self._interrupt(number)
            return
        self._signal_guards(self._outcome.running(), KILL_NOW)
        self._kill_at = monotonic() + _MPIRUNS_LAST_WORD

    def _interrupt(self, number: int) -> None:
        self._outcome.interrupted = number
        self._kill_at = monotonic() + GRACE_SECONDS + _MPIRUNS_LAST_WORD
        self._signal_guards(self._outcome.running(), signal.SIGTERM)
        # Guards on other hosts are out of reach, and before they have started mpirun is all there
        # is; it ends what it has started.
        if not self._is_local or not self._outcome.instances:
            send(self._mpirun, signal.SIGTERM)

    def _signal_guards(self, instances: Iterable[InstanceRecord], number: int) -> None:
        if self._is_local:
            for one in instances:
                send(one.guard, number)

    def _sweep(self) -> None:
        """Makes sure that nothing of the job outlives it, whatever has happened to the guards."""
        if self._mpirun and self._outcome.mpirun_code is None:
            send(self._mpirun, signal.SIGKILL)
            os.waitpid(self._mpirun, 0)
        if not self._is_local:
            return
        until = monotonic() + _GUARDS_LAST_WORD
        silent = self._outcome.running()
        while monotonic() < until and any(process_start(one.guard) for one in silent):
            select.select([], [], [], 0.02)
        for one in silent:
            # A program may have ended and left members of its group behind; its number is not
            # given to another process before they are gone.
            if one.began and process_start(one.pid) in (one.began, ""):
                send_group(one.pid, signal.SIGKILL)


def _read_once(fd: int, handler: Callable[[bytes], None]) -> bool:
    """Reads and hands on; False at the end of the stream."""
    try:
        data = os.read(fd, _READ_SIZE)
    except BlockingIOError:
        return True
    handler(data)
    return bool(data)
