"""The record of a machine that runs instances, the names of this machine, and its shared memory."""

from __future__ import annotations

import os

from popdist.poprun.record import Record

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1"})
_SHARED = "/dev/shm"  # noqa: S108 - where Open MPI has its segments
_SEGMENT = 1 << 24  # of an instance, with Open MPI 5; that of Open MPI 4 has 4 MiB


class Host(Record):
    """A machine that runs instances.

    Attributes:
        name: The host name or IPv4 address.
        slots: How many instances the host takes; None where the list gives no number.
        cpus: How many processors of the host a batch system grants; None for all.
    """

    name: str
    slots: int | None = None
    cpus: int | None = None

    @property
    def is_local(self) -> bool:
        """Whether the name belongs to this machine."""
        here = os.uname().nodename
        return self.name in LOCAL_NAMES or self.name in (here, here.partition(".")[0])


def has_shared_memory(instances: int) -> bool:
    """Whether the shared memory of this machine has room for MPI's segments of some instances."""
    try:
        facts = os.statvfs(_SHARED)
    except OSError:
        return False
    return os.access(_SHARED, os.W_OK) and facts.f_bavail * facts.f_frsize >= _SEGMENT * instances
