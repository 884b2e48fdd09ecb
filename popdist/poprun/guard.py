"""The process that runs beside each program: relays its output, reports its end, leaves no orphan.

mpirun starts a guard for every instance, on the instance's own host; the guard starts the program
in a process group of its own and

- sends output in whole lines and reports start and end to the launcher,
- passes signals on, and kills the group when its patience is over,
- kills the group at once when the launcher or mpirun has disappeared.

It imports little, and nothing that is not in the standard library, because every launch
waits for it.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` adds enums, for 6 ms
import os
import select
import sys
from time import monotonic

from popdist.poprun import frames
from popdist.poprun.channel import open_channel
from popdist.poprun.lines import LineCutter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import BinaryIO

    from popdist.poprun.channel import PipeChannel, StreamChannel

    Channel = PipeChannel | StreamChannel

_READ_SIZE = 1 << 16
_TAIL_SIZE = 3000
_DRAIN_SECONDS = 0.3
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
KILL_NOW = signal.SIGQUIT
"""Ends the program without patience; mpirun never sends it."""
_PR_SET_PDEATHSIG = 1

NOT_FOUND = 127
LAUNCHER_LOST = 1


class Stream:
    """One output stream of the program, on its way to the launcher."""

    def __init__(self, fd: int, name: str, settings: Mapping[str, str]) -> None:
        index = settings["index"]
        tag = f"[1,{index}]<{name}>:" if settings.get("tag") == "1" else ""
        self.fd = fd
        self.is_error = name == "stderr"
        self.shown = settings.get("show") == "1"
        self.tail = b""
        self._cutter = LineCutter(tag.encode())
        self._eager = settings.get("eager") == "1"
        self._copy = _open_copy(settings.get("files"), index, name)

    def pumping(self, channel: Channel) -> Callable[[], bool]:
        """`pump` for a channel, to be called when there is something to read."""
        return lambda: self.pump(channel)

    def pump(self, channel: Channel) -> bool:
        """Passes on what can be read now; False at the end of the stream."""
        try:
            data = os.read(self.fd, _READ_SIZE)
        except OSError:  # a terminal without writers answers EIO
            data = b""
        if not data:
            return False
        self.tail = (self.tail + data)[-_TAIL_SIZE:]
        if self._copy is not None:
            self._write_copy(data)
        if self.shown:
            channel.text(self._cutter.feed(data), is_error=self.is_error)
        return True

    @property
    def is_waiting(self) -> bool:
        """Whether a line that has not ended, such as a prompt, should be shown before long."""
        return self._eager and self.shown and self._cutter.pending

    def idle(self, channel: Channel) -> None:
        """Shows such a line; no other instance is there whose lines it could break."""
        if self.is_waiting:
            channel.text(self._cutter.flush(), is_error=self.is_error)

    def close(self, channel: Channel) -> None:
        """Passes on the rest."""
        if self.shown:
            channel.text(self._cutter.flush(), is_error=self.is_error)
        if self._copy is not None:
            self._copy.close()

    def _write_copy(self, data: bytes) -> None:
        assert self._copy is not None  # noqa: S101 - checked by the caller
        try:
            self._copy.write(data)
        except OSError as error:  # a full disk must not end the program
            self._copy.close()
            self._copy = None
            os.write(2, f"poprun: output files end here: {error}\n".encode())


def _open_copy(folder: str | None, index: str, name: str) -> BinaryIO | None:
    if not folder:
        return None
    place = f"{folder}/1/rank.{index}"  # the layout of Open MPI 4
    os.makedirs(place, exist_ok=True)
    return open(f"{place}/{name}", "wb", buffering=0)


class Guard:
    """Runs one program to its end."""

    def __init__(self, settings: Mapping[str, str], program: list[str], channel: Channel) -> None:
        self._settings = settings
        self._program = program
        self._channel = channel
        self._index = int(settings["index"])
        self._grace = float(settings.get("grace", "5"))
        self._kill_at: float | None = None
        self._orphaned = ""
        self._pid = 0

    def run(self) -> int:
        """Starts the program and stays until it has ended.

        Returns:
            Its exit code; 128 + the number of the signal that killed it.
        """
        parent = os.getppid()
        out, out_end = _terminal_or_pipe()
        err, err_end = os.pipe()
        self._start(out_end, err_end)
        os.close(out_end)
        os.close(err_end)
        streams = [Stream(out, "stdout", self._settings), Stream(err, "stderr", self._settings)]
        self._channel.record(
            frames.STARTED,
            frames.encode_fields(
                pid=self._pid, guard=os.getpid(), began=process_start(self._pid), ppid=parent
            ),
        )
        status = self._watch(streams, parent)
        self._kill_group()
        for stream in streams:
            stream.close(self._channel)
        self._channel.record(
            frames.ENDED,
            frames.encode_fields(code=max(status, 0), signal=max(0, -status), lost=self._orphaned)
            + b"\n\n"
            + streams[1].tail,
        )
        return LAUNCHER_LOST if self._orphaned else status if status >= 0 else 128 - status

    def _start(self, out_end: int, err_end: int) -> None:
        die_with_parent = _load_prctl()
        pid = os.fork()
        if pid:
            self._pid = pid
            _lead_group(pid)
            for number in _FORWARDED:
                signal.signal(number, self._on_signal)
            signal.signal(KILL_NOW, lambda *_: self._kill_group())
            return
        try:
            _lead_group(0)
            die_with_parent()
            os.dup2(out_end, 1)
            os.dup2(err_end, 2)
            for number in (*_FORWARDED, KILL_NOW, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            _set_threads(self._settings)
            os.execvp(self._program[0], self._program)  # noqa: S606 - no shell is the point
        except (OSError, ValueError) as error:
            os.write(2, f"poprun: cannot start {self._program[0]}: {error}\n".encode())
        finally:
            os._exit(NOT_FOUND)

    def _watch(self, streams: list[Stream], parent: int) -> int:
        """Relays until the program has ended and its output is drained."""
        poll = select.poll()
        actions = self._register(poll, streams, parent)
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
            self._check(parent)
            if status is None:
                status = self._reap()
                drain_until = 0.0 if status is None else monotonic() + _DRAIN_SECONDS
        return status

    def _register(
        self, poll: select.poll, streams: list[Stream], parent: int
    ) -> dict[int, Callable[[], bool]]:
        """What to do when a descriptor has news; an action answers whether there can be more."""
        actions: dict[int, Callable[[], bool]] = {
            stream.fd: stream.pumping(self._channel) for stream in streams
        }
        for pid, action in ((self._pid, _stop), (parent, self._on_mpirun_end)):
            fd = _watchable(pid)
            if fd is not None:
                actions[fd] = action
        for fd in actions:
            poll.register(fd, select.POLLIN)
        if self._channel.liveness is not None:
            actions[self._channel.liveness] = self._on_launcher_end
            poll.register(self._channel.liveness, 0)
        return actions

    def _check(self, parent: int) -> None:
        """What no descriptor tells: a lost parent on old kernels, and patience that is over."""
        if os.getppid() != parent:
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
        self._signal_group(number)
        if number in _ENDING and self._kill_at is None:
            self._signal_group(signal.SIGCONT)  # a stopped program must wake up to end
            self._kill_at = monotonic() + self._grace

    def _on_mpirun_end(self) -> bool:
        return self._abandon("mpirun ended")

    def _on_launcher_end(self) -> bool:
        self._channel.remove()
        return self._abandon("poprun ended")

    def _abandon(self, why: str) -> bool:
        self._orphaned = self._orphaned or why
        self._kill_group()
        return False

    def _kill_group(self) -> None:
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: int) -> None:
        try:
            os.killpg(self._pid, number)
        except (ProcessLookupError, PermissionError):  # ended, or has changed its user
            pass


def _stop() -> bool:
    """The program has ended, which the next look at it finds out; no need to hear it again."""
    return False


def _lead_group(pid: int) -> None:
    """Makes the program lead a group; parent and child both do so, as either may run first."""
    try:
        os.setpgid(pid, pid)
    except OSError:  # it has done so itself, and may already run or have ended
        pass


def process_start(pid: int) -> str:
    """When a running process began, in ticks since boot; empty where it has ended.

    Tells a process from a later one with the same number.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


def _terminal_or_pipe() -> tuple[int, int]:
    """A pair of ends for standard output: a terminal where one can be had.

    mpirun gives its programs a terminal, which is what makes their output appear line by line.
    """
    try:
        reader, writer = os.openpty()
    except OSError:
        return os.pipe()
    import termios

    modes = termios.tcgetattr(writer)
    modes[1] &= ~termios.OPOST  # line feeds stay what they are
    modes[3] &= ~(termios.ECHO | termios.ICANON | termios.ISIG)
    termios.tcsetattr(writer, termios.TCSANOW, modes)
    return reader, writer


def _watchable(pid: int) -> int | None:
    """A descriptor that becomes readable when a process ends; None where the kernel has none."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None


def _load_prctl() -> Callable[[], object]:
    """A function that makes the kernel kill the calling process when its parent is killed."""
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):  # not Linux
        return _stop
    return lambda: prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _set_threads(settings: Mapping[str, str]) -> None:
    """Shares the cores among the instances of this host, unless the user has decided."""
    neighbours = int(settings.get("neighbours", "1"))
    if neighbours > 1 and "OMP_NUM_THREADS" not in os.environ:
        cores = len(os.sched_getaffinity(0))
        os.environ["OMP_NUM_THREADS"] = str(max(1, cores // neighbours))


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
        return LAUNCHER_LOST
    return Guard(settings, program, channel).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
