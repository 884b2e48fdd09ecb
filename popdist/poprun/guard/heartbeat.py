"""The guard's heartbeat in a job on several hosts, and the check for a lost connection.

Where a cable is cut, no connection reports an end, and a daemon with unsent data waits for a
quarter of an hour. The kernel counts how often it has sent the same bytes without an answer. Guards
send a heartbeat every few seconds, so there is always data to resend.
"""

from __future__ import annotations

import os
from time import monotonic

from popdist.poprun.protocol.frames import BEATS

_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
_RETRANSMITS, _INODE = 6, 9


class Heartbeat:
    """Decides when the next heartbeat is due, and whether heartbeats still get through.

    Args:
        seconds: The silence after which a host counts as lost.
        mpirun: mpirun or its daemon on this host.
    """

    def __init__(self, seconds: float, mpirun: int) -> None:
        self._interval = seconds / BEATS
        self._next = monotonic() + self._interval
        self._uplink = Uplink(mpirun, seconds)

    def wait(self, now: float) -> float:
        """Seconds from now until the next heartbeat."""
        return max(0.001, self._next - now)

    def is_due(self) -> bool:
        """Whether a heartbeat is due; the next one is then an interval later."""
        now = monotonic()
        if now < self._next:
            return False
        self._next = now + self._interval
        return True

    def has_lost_its_way(self) -> bool:
        """Whether this host has been cut off for too long."""
        return self._uplink.is_lost()


class Uplink:
    """Watches the connections of a process.

    Args:
        pid: mpirun's daemon.
        seconds: How long an answer may take.
    """

    def __init__(self, pid: int, seconds: float) -> None:
        self._pid = pid
        self._seconds = seconds
        self._unanswered: dict[str, float] = {}

    def is_lost(self) -> bool:
        """Whether a connection has been without an answer for too long."""
        now = monotonic()
        ours = _sockets(self._pid)
        self._unanswered = {
            inode: self._unanswered.get(inode, now) for inode in _repeating() if inode in ours
        }
        return any(now - since >= self._seconds for since in self._unanswered.values())


def _sockets(pid: int) -> set[str]:
    folder = f"/proc/{pid}/fd"
    found: set[str] = set()
    try:
        names = os.listdir(folder)
    except OSError:
        return found
    for name in names:
        try:
            target = os.readlink(f"{folder}/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target[len("socket:[") : -1])
    return found


def _repeating() -> list[str]:
    """The sockets of this host that resend unanswered bytes."""
    found = []
    for table in _TABLES:
        try:
            with open(table, encoding="ascii") as file:
                rows = [line.split() for line in file][1:]
        except OSError:
            continue
        found += [row[_INODE] for row in rows if int(row[_RETRANSMITS], 16)]
    return found
