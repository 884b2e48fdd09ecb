"""What a guard tells the launcher about its program, as records, and the ways there.

On one machine that is a pipe of its own (a FIFO in the job's private folder). It carries whole
frames, so lines of different instances never mix, and it tells the guard at once when the launcher
is gone. Where instances run on other hosts, frames travel as lines of a fixed length on standard
error, marked by a secret of the job.
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

_LOG = "/dev/kmsg"
_LARGEST_LOG = 1 << 20


class Reporter:
    """Speaks for a guard; made before the program starts.

    Args:
        channel: The way to the launcher.
    """

    def __init__(self, channel: PipeChannel | StreamChannel) -> None:
        self._channel = channel
        self._evidence = OomEvidence()
        self._began = monotonic()

    def started(self, pid: int) -> None:
        """The program has started.

        Args:
            pid: Its process.
        """
        fields = {"pid": pid, "guard": os.getpid(), "began": process_start(pid)}
        self._channel.record(frames.STARTED, frames.encode_fields(**fields))

    def notes(self, notes: Iterable[Mapping[str, str]]) -> None:
        """Something was noticed.

        Args:
            notes: Fields of each note; ``what`` says what kind it is.
        """
        for note in notes:
            self._channel.record(frames.NOTE, frames.encode_fields(**note))

    def stacks(self, text: str) -> None:
        """The program's Python stacks.

        Args:
            text: What the interpreter wrote; nothing is said where it is empty.
        """
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
        """The program has ended, and all of its output was sent.

        Args:
            pid: Its process.
            status: Its exit code; negative for the signal that ended it.
            memory: The most memory it had, in bytes.
            tail: The end of its standard error.
            lost: Why the guard ended it, where the launcher or mpirun had gone.
            asked: Whether it had been asked to end.
            speaks: Whether it imports popdist.
        """
        fields = {
            "code": max(status, 0),
            "signal": max(0, -status),
            "lost": lost,
            "asked": int(asked),
            "seconds": f"{monotonic() - self._began:.3f}",
            "memory": memory,
            "oom": self._evidence.about(pid) if -status == signal.SIGKILL else "",
            "speaks": int(speaks),
        }
        self._channel.record(frames.ENDED, frames.encode_fields(**fields) + b"\n\n" + tail)


class PipeChannel:
    """Frames on the job's pipe.

    Attributes:
        liveness: A descriptor that reports an error when the launcher is gone.
    """

    def __init__(self, index: int, path: str) -> None:
        self._index = index
        self._path = path
        # Without a reader this fails at once instead of waiting for one.
        self._fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        os.set_blocking(self._fd, True)
        self.liveness: int | None = self._fd

    def text(self, units: bytes, *, is_error: bool) -> None:
        """Sends complete units of output."""
        if units:
            self.record(frames.ERR if is_error else frames.OUT, units)

    def record(self, kind: int, payload: bytes) -> None:
        """Sends a record of one of the kinds in `frames`, of any length."""
        try:
            for frame in frames.encode_all(self._index, kind, payload):
                os.write(self._fd, frame)
        except BrokenPipeError:  # the launcher is gone; `liveness` says so too
            pass

    def remove(self) -> str:
        """Removes the pipe, which the launcher no longer can; other guards may be quicker.

        Returns:
            The job's folder where this guard was the first, which then has to remove it, as soon
            as mpirun does not use it any more; else an empty text.
        """
        try:
            os.unlink(self._path)
        except OSError:
            return ""
        return os.path.dirname(self._path)


class StreamChannel:
    """Frames as lines on the guard's standard error.

    Attributes:
        liveness: None; the guard watches its parent instead.
    """

    liveness: int | None = None

    def __init__(self, index: int, token: str) -> None:
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
                os.write(2, frames.encode_line(frame, self._token))
        except OSError:  # mpirun is gone; the guard sees it by its parent
            pass

    def remove(self) -> str:
        """Removes nothing: mpirun's streams end with mpirun."""
        return ""


def open_channel(settings: Mapping[str, str]) -> PipeChannel | StreamChannel:
    """Opens the channel that a guard's settings name.

    Args:
        settings: ``index`` and either ``pipe`` (a path) or ``token``.

    Returns:
        The channel.

    Raises:
        OSError: The launcher no longer reads the pipe.
    """
    index = int(settings["index"])
    if "pipe" in settings:
        return PipeChannel(index, settings["pipe"])
    return StreamChannel(index, settings["token"])


class OomEvidence:
    """Whether the kernel killed a program for want of memory, by its counters before and after.

    The control group of the calling process counts what was killed in it: ``memory.events`` of
    version 2, ``memory.oom_control`` of version 1. Where the kernel's log may be read, it names the
    process.
    """

    def __init__(self) -> None:
        self._files = _counters()
        self._before = [_count(path) for path in self._files]

    def about(self, pid: int) -> str:
        """What speaks for it.

        Args:
            pid: The process, which SIGKILL has ended.

        Returns:
            The evidence in words; empty where there is none.
        """
        for path, before in zip(self._files, self._before, strict=True):
            if _count(path) > before:
                limit = _limit(path)
                return "the kernel killed a process of its control group" + (
                    f", whose limit is {limit >> 20} MiB" if limit else ""
                )
        if _is_named_in_log(pid):
            return "the kernel's log names it"
        return ""


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
    """How many processes were killed, by a file whose lines are a name and a number."""
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
    """Whether the kernel's log says that it killed this process for want of memory."""
    try:
        fd = os.open(_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:  # usually root's alone
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
