"""Detects, beside a program, that the program waits for other instances for too long.

The checks use three facts: the program's own statement about waiting (`popdist.program_status`),
the messages of Horovod's stall inspector on standard error, and whether the process was stopped.
"""

from __future__ import annotations

import os
import select
from time import monotonic

from popdist import program_status
from popdist.poprun.protocol.processes import process_state, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_HOROVODS_WORDS = b"Missing ranks:"
_MOST_OFTEN = 1.0
_STOPPED = ("stopped", "")

_LONGEST_DUMP = 0.4  # mpirun grants a job that it ends about a second
_QUIET = 0.03
_LARGEST_DUMP = 60_000


class StallWatch:
    """Watches one program.

    Args:
        seconds: How long waiting may take; 0 for no watch.
        pid: The program's process.
        status: What the program states.
    """

    def __init__(self, seconds: float, pid: int, status: ProgramStatus) -> None:
        self._seconds = seconds
        self._pid = pid
        self._status = status
        self._position = ("", "")
        self._since = monotonic()
        self._told = False
        self._heard: list[bytes] = []
        self._mute_until: float | None = monotonic() + seconds

    @property
    def interval(self) -> float | None:
        """Seconds between two checks; None for no checks."""
        return min(max(_MOST_OFTEN, self._seconds / 12), self._seconds / 4) or None

    def look(self) -> Iterator[dict[str, str]]:
        """Checks the program and yields changes.

        The changes are ``waits`` or ``stopped`` for too long, later ``moves``, and once ``mute``
        for a program without a statement.
        """
        if not self._seconds:
            return
        speaker, count, where = self._status.position()
        if self._mute_until is not None and (speaker or monotonic() >= self._mute_until):
            self._mute_until = None
            if not speaker:
                yield {"what": "mute"}
        stopped = any(process_state(pid) in ("T", "t") for pid in (self._pid, speaker) if pid)
        position = _STOPPED if stopped else (count, where)
        if position != self._position:
            self._position, self._since = position, monotonic()
            if self._told:
                self._told = False
                yield {"what": "moves"}
        elif (stopped or where) and not self._told and self._waited >= self._seconds:
            self._told = True
            yield {"what": "stopped" if stopped else "waits", "where": where}

    @property
    def _waited(self) -> float:
        return monotonic() - self._since

    def hear(self, tail: bytes) -> Iterator[dict[str, str]]:
        """Searches standard error for messages of Horovod's stall inspector.

        Each rank in a new message yields a note with the tensors that this rank has not submitted.
        ``tail`` may begin inside a line.
        """
        if not self._seconds:
            return
        _, words, after = tail.rpartition(_HOROVODS_WORDS)
        missing = after.split(b"\n")[1:-1]  # whole lines only
        lines = [line for line in missing if line.partition(b":")[0].strip().isdigit()]
        if not words:
            return
        for line in lines:
            if line not in self._heard:
                rank, _, tensors = line.decode(errors="replace").partition(":")
                where = tensors.strip(" []")
                yield {"what": "horovod", "missing": rank.strip(), "where": where}
        self._heard = lines or self._heard


class ProgressWatch:
    """Tells of a program's progress now and then.

    Args:
        seconds: How often; 0 for at the end only.
        status: What the program states.
    """

    def __init__(self, seconds: float, status: ProgramStatus) -> None:
        self.interval = seconds or None
        self._status = status
        self._told: dict[str, str] = {}
        self._next = monotonic() + seconds

    def look(self, *, at_end: bool = False) -> Iterator[dict[str, str]]:
        """Yields the program's new progress when a report is due, or at the program's end."""
        if not at_end and (self.interval is None or monotonic() < self._next):
            return
        self._next = monotonic() + (self.interval or 0.0)
        stated = self._status.progress()
        if stated and stated != self._told:
            self._told = stated
            yield {**stated, "what": "progress"}


class ProgramStatus:
    """The file in which a program states its activity.

    Attributes:
        fd: The descriptor, which the program inherits.
    """

    def __init__(self) -> None:
        self.fd: int | None = None
        try:
            self.fd = os.memfd_create(program_status.NAME)
            os.lseek(self.fd, program_status.HEADER_SIZE, os.SEEK_SET)
        except (OSError, AttributeError):  # not Linux
            pass

    def position(self) -> tuple[int, str, str]:
        """The stating process, a text that changes with every statement, and what it waits for.

        The process is 0 where no process imports popdist; the last text is empty without waiting.
        """
        pid, count, where = self._header()
        return (pid, count, where) if count != program_status.EARLY else (0, "", "")

    def _header(self) -> tuple[int, str, str]:
        """The same, also of a process that has not imported popdist."""
        if self.fd is None:
            return 0, "", ""
        text = (
            os.pread(self.fd, program_status.WAITING_SIZE, 0).strip(b"\0").decode(errors="replace")
        )
        pid, _, rest = text.partition(" ")
        count, _, where = rest.partition(" ")
        return (int(pid), count, where) if pid.isdecimal() else (0, "", "")

    def progress(self) -> dict[str, str]:
        """The program's reported progress; empty without a report."""
        if self.fd is None:
            return {}
        size = program_status.HEADER_SIZE - program_status.WAITING_SIZE
        data = os.pread(self.fd, size, program_status.WAITING_SIZE).strip(b"\0")
        parts = [part.partition("=") for part in data.decode(errors="replace").split()]
        return {name: value for name, equals, value in parts if equals}

    def end(self) -> str:
        """What the program has stated of its training; empty without a statement."""
        if self.fd is None:
            return ""
        size = int.from_bytes(os.pread(self.fd, 8, program_status.END_PLACE), "little")
        return os.pread(self.fd, size, program_status.END_PLACE + 8).decode(errors="replace")

    def dump(self) -> str:
        """Requests the Python stacks of all threads; returns them, or a reason in parentheses."""
        pid = self._header()[0]
        if self.fd is None or not pid:
            return "(no Python stacks: the program is not Python, or one that popdist supports)"
        state = process_state(pid)
        if not state:
            return "(no Python stacks: the process has ended)"
        if state in "Tt":
            return "(no Python stacks: the process is stopped, as by SIGSTOP)"
        if not _catches(pid, program_status.DUMP_SIGNAL):  # which would end it
            return "(no Python stacks: the process is just starting or ending)"
        # The program writes at the position that it shares with this process.
        os.ftruncate(self.fd, program_status.HEADER_SIZE)
        os.lseek(self.fd, program_status.HEADER_SIZE, os.SEEK_SET)
        send(pid, program_status.DUMP_SIGNAL)
        self._await_quiet()
        text = os.pread(self.fd, _LARGEST_DUMP, program_status.HEADER_SIZE).decode(errors="replace")
        return text.strip() or "(no Python stacks: the process did not answer)"

    def _await_quiet(self) -> None:
        """Waits until the program has finished writing, or until the time limit."""
        assert self.fd is not None  # noqa: S101 - checked by the caller
        until = monotonic() + _LONGEST_DUMP
        seen = program_status.HEADER_SIZE
        while monotonic() < until:
            select.select([], [], [], _QUIET)
            size = os.fstat(self.fd).st_size
            if size == seen > program_status.HEADER_SIZE:
                return
            seen = size


def _catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            mask = next(line for line in file if line.startswith(b"SigCgt:")).split()[1]
    except (OSError, StopIteration):
        return False
    return bool(int(mask, 16) >> (number - 1) & 1)
