"""The guard's sign of life where instances run on several hosts."""

from __future__ import annotations

from time import monotonic

from popdist.poprun.supervision.uplink import Uplink

BEATS = 4
"""Signs of life within the time after which a silent host is given up."""


class Heartbeat:
    """Says when the next sign of life is due, and whether it can still get out.

    Args:
        seconds: After how much silence a host is given up; 0 for a job on one machine.
        mpirun: mpirun or its daemon on this host.
    """

    def __init__(self, seconds: float, mpirun: int) -> None:
        self._interval = seconds / BEATS
        self._next = monotonic() + self._interval
        self._uplink = Uplink(mpirun, seconds)

    def wait(self, now: float) -> float | None:
        """Seconds from now until the next one; None for never."""
        return max(0.001, self._next - now) if self._interval else None

    def is_due(self) -> bool:
        """Whether it is time; the next one is then an interval away."""
        now = monotonic()
        if not self._interval or now < self._next:
            return False
        self._next = now + self._interval
        return True

    def has_lost_its_way(self) -> bool:
        """Whether this host has been cut off for too long."""
        return self._uplink.is_lost()
