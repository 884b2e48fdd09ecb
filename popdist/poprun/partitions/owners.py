"""Who made a partition, and whether that process still lives."""

from __future__ import annotations

import os

from popdist.poprun.record import Record
from popdist.poprun.supervision.processes import process_start


class Owner(Record):
    """A process, told apart from later ones with its number.

    Attributes:
        pid: Its number.
        start: When it began, in ticks since the machine was booted.
        boot: Which boot of the machine that was.
    """

    pid: int
    start: str
    boot: str

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self.boot == _boot() and process_start(self.pid) == self.start


def this_process() -> Owner:
    """The calling process.

    Returns:
        Its record.
    """
    return Owner(os.getpid(), process_start(os.getpid()), _boot())


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
