"""The guard's side of `popdist.witness`: what the program waits for, and its Python stacks."""

from __future__ import annotations

import os
import select
from time import monotonic

from popdist import witness
from popdist.poprun.supervision.processes import send

_LONGEST_DUMP = 0.4  # mpirun grants a job that it ends about a second
_QUIET = 0.03
_LARGEST_DUMP = 60_000


class Witness:
    """The file in which a program states what it does.

    Attributes:
        fd: Its descriptor, for the program to inherit.
    """

    def __init__(self) -> None:
        self.fd: int | None = None
        try:
            self.fd = os.memfd_create(witness.NAME)
            os.lseek(self.fd, witness.HEADER_SIZE, os.SEEK_SET)
        except (OSError, AttributeError):  # not Linux
            pass

    def position(self) -> tuple[int, str, str]:
        """Where the program is.

        Returns:
            The process that states it (0 where none imports popdist), a text that changes with
            every statement, and what it waits for; the latter empty where it does not wait.
        """
        if self.fd is None:
            return 0, "", ""
        text = os.pread(self.fd, witness.HEADER_SIZE, 0).strip(b"\0").decode(errors="replace")
        pid, _, rest = text.partition(" ")
        count, _, where = rest.partition(" ")
        return (int(pid), count, where) if pid.isdecimal() else (0, "", "")

    def dump(self) -> str:
        """Asks for the Python stacks of all threads.

        Returns:
            What the interpreter wrote, or why there is nothing, in parentheses.
        """
        pid = self.position()[0]
        if self.fd is None or not pid:
            return "(no Python stacks: the program does not import popdist)"
        state = process_state(pid)
        if not state:
            return "(no Python stacks: the process has ended)"
        if state in "Tt":
            return "(no Python stacks: the process is stopped, as by SIGSTOP)"
        # The program writes at the position that it shares with this process.
        os.ftruncate(self.fd, witness.HEADER_SIZE)
        os.lseek(self.fd, witness.HEADER_SIZE, os.SEEK_SET)
        send(pid, witness.DUMP_SIGNAL)
        self._await_quiet()
        text = os.pread(self.fd, _LARGEST_DUMP, witness.HEADER_SIZE).decode(errors="replace")
        return text.strip() or "(no Python stacks: the process did not answer)"

    def _await_quiet(self) -> None:
        """Waits until the program has written and stopped writing, or for long enough."""
        assert self.fd is not None  # noqa: S101 - checked by the caller
        until = monotonic() + _LONGEST_DUMP
        seen = witness.HEADER_SIZE
        while monotonic() < until:
            select.select([], [], [], _QUIET)
            size = os.fstat(self.fd).st_size
            if size == seen > witness.HEADER_SIZE:
                return
            seen = size


def process_state(pid: int) -> str:
    """The kernel's letter for what a process does ("R", "S", "D", "T"); empty where it has ended.

    Args:
        pid: The process.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            letter = file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""
    return "" if letter in "ZX" else letter
