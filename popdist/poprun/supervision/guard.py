"""The process that runs beside each program: relays its output, reports its end, leaves no orphan.

mpirun starts a guard for every instance, on the instance's own host; the guard starts the program
in a process group of its own and

- sends output in whole lines and reports start and end to the launcher,
- passes signals on, and kills the group when its patience is over,
- kills the group at once when the launcher or mpirun has disappeared.

It imports little, because every launch waits for it.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` adds enums, for 6 ms
import os
import select
import sys
from time import monotonic

from popdist.poprun.machines.binding import place_of
from popdist.poprun.supervision import frames
from popdist.poprun.supervision.channel import open_channel
from popdist.poprun.supervision.front import FORWARDED, run_behind_a_front
from popdist.poprun.supervision.leash import load_leash
from popdist.poprun.supervision.processes import lead_group, process_start, send_group, watchable
from popdist.poprun.supervision.stream import Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from popdist.poprun.supervision.channel import PipeChannel, StreamChannel

_DRAIN_SECONDS = 0.3
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
KILL_NOW = signal.SIGQUIT
"""Ends the program without patience; mpirun never sends it."""

GRACE_SECONDS = 5.0
"""What a program has between being asked to end and being killed."""

NOT_FOUND = 127


class Guard:
    """Runs one program to its end.

    Args:
        settings: How to behave, by name; `popdist.poprun.plan.mpirun` writes them.
        program: The program and its arguments.
        channel: The way to the launcher.
        mpirun: The process that must not disappear.
    """

    def __init__(
        self,
        settings: Mapping[str, str],
        program: list[str],
        channel: PipeChannel | StreamChannel,
        mpirun: int,
    ) -> None:
        self._settings = settings
        self._program = program
        self._channel = channel
        self._mpirun = mpirun
        self._front = os.getppid()
        self._kill_at: float | None = None
        self._orphaned = ""
        self._launcher_lost = False
        self._pid = 0

    def run(self, announce: int) -> int:
        """Starts the program and stays until it has ended.

        Args:
            announce: A descriptor that gets the number of the program's process group.

        Returns:
            Its exit code; 128 + the number of the signal that killed it; 0 where the launcher is
            gone.
        """
        out, out_end = _terminal_or_pipe(self._settings)
        err, err_end = os.pipe()
        self._start(out_end, err_end)
        os.write(announce, str(self._pid).encode())
        os.close(out_end)
        os.close(err_end)
        streams = [Stream(out, "stdout", self._settings), Stream(err, "stderr", self._settings)]
        self._channel.record(
            frames.STARTED,
            frames.encode_fields(pid=self._pid, guard=os.getpid(), began=process_start(self._pid)),
        )
        status = self._watch(streams)
        self._kill_group()
        for stream in streams:
            stream.close(self._channel)
        self._channel.record(
            frames.ENDED,
            frames.encode_fields(code=max(status, 0), signal=max(0, -status), lost=self._orphaned)
            + b"\n\n"
            + streams[1].tail,
        )
        if self._launcher_lost:
            return 0  # nobody asks any more, and after a failure mpirun would take a second to end
        return status if status >= 0 else 128 - status

    def _start(self, out_end: int, err_end: int) -> None:
        die_with_guard = load_leash()
        pid = os.fork()
        if pid:
            self._pid = pid
            lead_group(pid)
            for number in FORWARDED:
                signal.signal(number, self._on_signal)
            signal.signal(KILL_NOW, lambda *_: self._kill_group())
            return
        try:
            lead_group(0)
            die_with_guard()
            os.dup2(out_end, 1)
            os.dup2(err_end, 2)
            for number in (*FORWARDED, KILL_NOW, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            if problem := place_of(self._settings).enter(os.environ):
                os.write(2, f"poprun: {problem}\n".encode())
            os.execvp(self._program[0], self._program)  # noqa: S606 - no shell is the point
        except (OSError, ValueError) as error:
            os.write(2, f"poprun: cannot start {self._program[0]}: {error}\n".encode())
        finally:
            os._exit(NOT_FOUND)

    def _watch(self, streams: list[Stream]) -> int:
        """Relays until the program has ended and its output is drained."""
        poll = select.poll()
        actions = self._register(poll, streams)
        status: int | None = None
        drain_until = 0.0
        readable = {stream.fd for stream in streams}
        while status is None or (readable and monotonic() < drain_until):
            waiting = any(stream.is_waiting for stream in streams)
            events = poll.poll(self._patience(0.1 if waiting else 0.5, drain_until))
            for fd, _ in events:
                if not actions[fd]():
                    poll.unregister(fd)
                    readable.discard(fd)
            if not events:
                for stream in streams:
                    stream.idle(self._channel)
            self._check()
            if status is None:
                status = self._reap()
                drain_until = 0.0 if status is None else monotonic() + _DRAIN_SECONDS
        return status

    def _register(self, poll: select.poll, streams: list[Stream]) -> dict[int, Callable[[], bool]]:
        """What to do when a descriptor has news; an action answers whether there can be more."""
        actions: dict[int, Callable[[], bool]] = {
            stream.fd: stream.pumping(self._channel) for stream in streams
        }
        for pid, action in (
            (self._pid, _stop),
            (self._front, self._on_mpirun_end),
            (self._mpirun, self._on_mpirun_end),
        ):
            fd = watchable(pid)
            if fd is not None:
                actions[fd] = action
        for fd in actions:
            poll.register(fd, select.POLLIN)
        if self._channel.liveness is not None:
            actions[self._channel.liveness] = self._on_launcher_end
            poll.register(self._channel.liveness, 0)
        return actions

    def _check(self) -> None:
        """What descriptors do not tell, on old kernels at least, and patience that is over."""
        if os.getppid() != self._front or not process_start(self._mpirun):
            self._on_mpirun_end()
        if self._kill_at is not None and monotonic() >= self._kill_at:
            self._kill_at = None
            self._kill_group()

    def _patience(self, longest: float, drain_until: float) -> float:
        """Milliseconds to wait for the next event."""
        moments = [moment for moment in (self._kill_at, drain_until) if moment]
        return max(0.0, min([longest, *(moment - monotonic() for moment in moments)])) * 1000

    def _reap(self) -> int | None:
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def _on_signal(self, number: int, _frame: object) -> None:
        send_group(self._pid, number)
        if number in _ENDING and self._kill_at is None:
            send_group(self._pid, signal.SIGCONT)  # a stopped program must wake up to end
            self._kill_at = monotonic() + GRACE_SECONDS

    def _on_mpirun_end(self) -> bool:
        return self._abandon("mpirun ended")

    def _on_launcher_end(self) -> bool:
        self._launcher_lost = True
        self._channel.remove()
        return self._abandon("poprun ended")

    def _abandon(self, why: str) -> bool:
        self._orphaned = self._orphaned or why
        self._kill_group()
        return False

    def _kill_group(self) -> None:
        send_group(self._pid, signal.SIGKILL)


def _stop() -> bool:
    """The program has ended, which the next look at it finds out; no need to hear it again."""
    return False


def _terminal_or_pipe(settings: Mapping[str, str]) -> tuple[int, int]:
    """A pair of ends for standard output: a terminal where one can be had.

    mpirun gives its programs a terminal, which is what makes their output appear line by line. Its
    terminals have no size, though, which hides progress bars.
    """
    try:
        reader, writer = os.openpty()
    except OSError:
        return os.pipe()
    import fcntl
    import termios

    modes = termios.tcgetattr(writer)
    modes[1] &= ~termios.OPOST  # line feeds stay what they are
    modes[3] &= ~(termios.ECHO | termios.ICANON | termios.ISIG)
    termios.tcsetattr(writer, termios.TCSANOW, modes)
    columns, rows = (int(number) for number in settings.get("size", "80x24").split("x"))
    size = rows.to_bytes(2, sys.byteorder) + columns.to_bytes(2, sys.byteorder) + bytes(4)
    fcntl.ioctl(writer, termios.TIOCSWINSZ, size)
    return reader, writer


def main(arguments: list[str]) -> int:
    """Runs a guard.

    Args:
        arguments: ``name=value`` settings, ``--``, and the program with its arguments.

    Returns:
        The exit code for mpirun.
    """
    end = arguments.index("--")
    settings = dict(word.split("=", 1) for word in arguments[:end])
    colon = settings.get("colon")
    program = [":" if word == colon else word for word in arguments[end + 1 :]]
    try:
        channel = open_channel(settings)
    except OSError:  # the launcher is gone already
        return 0
    return run_behind_a_front(
        lambda mpirun, announce: Guard(settings, program, channel, mpirun).run(announce)
    )
