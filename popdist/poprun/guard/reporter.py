"""The guard's reports to the launcher about its program, and the channels for them.

On one machine the channel is a pipe (a FIFO in the job's private folder). The pipe carries whole
frames, so lines of different instances never mix, and the guard detects the launcher's end at once.
Where instances run on other hosts, frames are sent as lines of a fixed length on standard error,
marked by a secret of the job.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` adds enums, for 5 ms
import os
from time import monotonic

from popdist.poprun.protocol import frames
from popdist.poprun.protocol.processes import process_start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from popdist.poprun.guard.heartbeat import Outlet

_LOG = "/dev/kmsg"
_LARGEST_LOG = 1 << 20


class Reporter:
    """Sends the reports of a guard; made before the program starts.

    Args:
        channel: The channel to the launcher.
    """

    def __init__(self, channel: PipeChannel | StreamChannel) -> None:
        self._channel = channel
        self._evidence = OomEvidence()
        self._began = monotonic()

    def started(self, pid: int) -> None:
        """Reports that the program has started."""
        fields = {"pid": pid, "guard": os.getpid(), "began": process_start(pid)}
        self._channel.record(frames.STARTED, frames.encode_fields(**fields))

    def notes(self, notes: Iterable[Mapping[str, str]]) -> None:
        """Reports notes; the field ``what`` is the kind of a note."""
        for note in notes:
            self._channel.record(frames.NOTE, frames.encode_fields(**note))

    def stacks(self, text: str) -> None:
        """Reports the program's Python stacks; an empty text is not sent."""
        if text:
            self._channel.record(frames.STACKS, text.encode())

    def ended(
        self,
        pid: int,
        status: int,
        memory: int,
        tail: bytes,
        *,
        lost: str,
        asked: bool,
        speaks: bool,
    ) -> None:
        """Reports the program's end, after all output was sent.

        ``status`` is the exit code, or the negative signal number; ``memory`` is the peak in bytes;
        ``lost`` is why the guard ended the program without the launcher or mpirun; ``speaks`` is
        whether the program imports popdist.
        """
        fields = {
            "code": max(status, 0),
            "signal": max(0, -status),
            "lost": lost,
            "asked": int(asked),
            "seconds": f"{monotonic() - self._began:.3f}",
            "memory": memory,
            "oom": self._evidence.about(pid, status),
            "speaks": int(speaks),
        }
        self._channel.record(frames.ENDED, frames.encode_fields(**fields) + b"\n\n" + tail)


class PipeChannel:
    """Frames on a pipe: the job's, which all guards share, or the pipe of a host's only guard.

    Args:
        index: The instance.
        fd: The pipe's end.
        largest: Bytes of a payload.
        path: The job's pipe, which a guard removes in place of a launcher that is gone.

    Attributes:
        liveness: A descriptor that reports an error when the launcher is gone.
        outlet: None; the launcher itself reads the pipe.
    """

    def __init__(self, index: int, fd: int, largest: int, path: str = "") -> None:
        self._index = index
        self._path = path
        self._fd = fd
        self._largest = largest
        self.liveness: int | None = fd
        self.outlet: Outlet | None = None

    def text(self, units: bytes, *, is_error: bool) -> None:
        """Sends complete units of output."""
        if units:
            self.record(frames.ERR if is_error else frames.OUT, units)

    def record(self, kind: int, payload: bytes) -> None:
        """Sends a record of one of the kinds in `frames`, of any length."""
        try:
            for frame in frames.encode_all(self._index, kind, payload, self._largest):
                rest = frame
                while rest:  # a signal may cut a long write short
                    rest = rest[os.write(self._fd, rest) :]
        except BrokenPipeError:  # the launcher is gone; `liveness` says so too
            pass

    def remove(self) -> str:
        """Removes the pipe in place of a launcher that is gone.

        The first guard to do so gets the job's folder, and has to remove the folder after mpirun's
        end; other guards get an empty text.
        """
        try:
            os.unlink(self._path)
        except OSError:
            return ""
        return os.path.dirname(self._path)


class StreamChannel:
    """Frames as lines on the guard's standard error.

    Args:
        index: The instance.
        token: The secret that marks records.
        seconds: How long mpirun's daemon may take to read.

    Attributes:
        liveness: None; the guard watches its parent instead.
        outlet: Where mpirun's daemon reads.
    """

    liveness: int | None = None

    def __init__(self, index: int, token: str, seconds: float) -> None:
        from popdist.poprun.guard.heartbeat import Outlet

        self.outlet = Outlet(2, seconds)
        self._index = index
        self._token = token.encode()
        self._room = frames.line_room(self._token)

    def text(self, units: bytes, *, is_error: bool) -> None:
        """Sends complete units of output."""
        if units:
            self.record(frames.ERR if is_error else frames.OUT, units)

    def record(self, kind: int, payload: bytes) -> None:
        """Sends a record of one of the kinds in `frames`, of any length."""
        try:
            for frame in frames.encode_all(self._index, kind, payload, self._room):
                self.outlet.write(frames.encode_line(frame, self._token))
        except OSError:  # mpirun is gone; the guard sees it by its parent
            pass

    def remove(self) -> str:
        """Removes nothing: mpirun's streams end with mpirun."""
        return ""


def open_channel(settings: Mapping[str, str]) -> PipeChannel | StreamChannel:
    """Opens the channel in a guard's settings: ``index``, and ``pipe`` (a path) or ``token``.

    Raises:
        OSError: The launcher no longer reads the pipe.
    """
    index = int(settings["index"])
    if "pipe" in settings:
        path = settings["pipe"]
        # Without a reader this fails at once instead of waiting for one.
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        os.set_blocking(fd, True)
        return PipeChannel(index, fd, frames.LARGEST_PAYLOAD, path)
    return StreamChannel(index, settings["token"], float(settings["heartbeat"]))


class OomEvidence:
    """Whether the kernel killed a program that ran out of memory, by counters before and after.

    The control group of the calling process counts killed processes: ``memory.events`` of version
    2, ``memory.oom_control`` of version 1. Where the kernel's log is readable, the log names the
    process.
    """

    def __init__(self) -> None:
        self._files = _counters()
        self._before = [_count(path) for path in self._files]

    def about(self, pid: int, status: int) -> str:
        """The evidence for a process that has failed; empty without evidence.

        A process that was not killed itself may have failed because a child was, as a worker that
        loads data. ``status`` is the exit code, or the negative signal number.
        """
        if not status:
            return ""
        was_killed = -status == signal.SIGKILL
        for path, before in zip(self._files, self._before, strict=True):
            if _count(path) > before:
                limit = _limit(path)
                return (
                    ("" if was_killed else "while it ran, ")
                    + "the kernel killed a process of its control group"
                    + (f", whose limit is {limit >> 20} MiB" if limit else "")
                )
        return "the kernel's log names it" if was_killed and _is_named_in_log(pid) else ""


def _counters() -> list[str]:
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if "memory" in controllers.split(","):
            folders, name = ["/sys/fs/cgroup/memory"], "memory.oom_control"
        elif number == "0":
            folders, name = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"], "memory.events"
        else:
            continue
        # In a container the group's own path may not be there; its root is then the group itself.
        candidates = [f"{folder}{place}/{name}" for folder in folders for place in (path, "")]
        found += [file for file in candidates if os.path.exists(file)][:1]
    return found


def _count(path: str) -> int:
    """The number of killed processes in a file whose lines are a name and a number."""
    try:
        with open(path, encoding="ascii") as file:
            counts = dict(line.split() for line in file)
        return int(counts.get("oom_kill", 0))
    except (OSError, ValueError):
        return 0


def _limit(counter: str) -> int:
    folder, name = os.path.split(counter)
    limit = "memory.max" if name == "memory.events" else "memory.limit_in_bytes"
    try:
        with open(f"{folder}/{limit}", encoding="ascii") as file:
            text = file.read().strip()
    except OSError:
        return 0
    return int(text) if text.isdecimal() and int(text) < 1 << 60 else 0


def _is_named_in_log(pid: int) -> bool:
    """Whether the kernel's log names this process as killed for lack of memory."""
    try:
        fd = os.open(_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:  # usually readable by root only
        return False
    words = f"Killed process {pid} ".encode()
    read = 0
    try:
        while read < _LARGEST_LOG:
            record = os.read(fd, 8192)
            read += len(record)
            if not record:
                break
            if words in record:
                return True
    except OSError:  # at its end, or overwritten meanwhile
        pass
    finally:
        os.close(fd)
    return False
