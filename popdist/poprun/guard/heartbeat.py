"""The guard's heartbeat in a job on several hosts, and the check for a lost connection.

Where a cable is cut, no connection reports an end, and a daemon with unsent data waits for a
quarter of an hour. The kernel counts how often it has sent the same bytes without an answer. Guards
send a heartbeat every few seconds, so there is always data to resend. A daemon that is stopped or
hangs does not even read the heartbeat, which the kernel says too.
"""

from __future__ import annotations

import os
import select
from time import monotonic

from popdist.poprun.protocol.frames import BEATS

_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
_RETRANSMITS, _INODE = 6, 9


class Heartbeat:
    """Decides when the next heartbeat is due, and whether heartbeats still get through.

    Args:
        seconds: The silence after which a host counts as lost.
        mpirun: mpirun or its daemon on this host.
        outlet: Where mpirun or its daemon reads reports; None where poprun itself does.
    """

    def __init__(self, seconds: float, mpirun: int, outlet: Outlet | None) -> None:
        self._interval = seconds / BEATS
        self._next = monotonic() + self._interval
        self._uplink = Uplink(mpirun, seconds)
        self._outlet = outlet

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
        """Whether this host has been cut off for too long; asked before each heartbeat."""
        return self._uplink.is_lost() or (self._outlet is not None and self._outlet.is_stuck())


class Outlet:
    """A pipe to mpirun's daemon that finds out whether the daemon reads.

    Args:
        fd: The descriptor for writing.
        seconds: How long the daemon may take to read.
    """

    def __init__(self, fd: int, seconds: float) -> None:
        self._fd = fd
        self._seconds = seconds
        self._written = self._read = 0
        self._is_full = False
        self._read_at = self._looked_at = monotonic()
        self._room = select.poll()
        self._room.register(fd, select.POLLOUT)

    def write(self, data: bytes) -> None:
        """Writes at most ``PIPE_BUF`` bytes; discards them if there is no room for too long."""
        self._is_full = self._is_full or not self._room.poll(self._seconds * 1000)
        if not self._is_full:
            self._written += os.write(self._fd, data)

    def is_stuck(self) -> bool:
        """Whether the daemon has not read for too long, although there is something to read."""
        now = monotonic()
        unread = _unread(self._fd)
        read = self._written - unread
        # The time in which this process was stopped itself does not count.
        overslept = now - self._looked_at > self._seconds / 2
        if not unread or read != self._read or overslept:
            self._read, self._read_at = read, now
        self._looked_at = now
        return self._is_full or now - self._read_at >= self._seconds


def _unread(pipe: int) -> int:
    """The bytes in a pipe."""
    import fcntl
    import sys
    import termios

    try:
        answer = fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))
    except OSError:  # not a pipe
        return 0
    return int.from_bytes(answer, sys.byteorder)


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
