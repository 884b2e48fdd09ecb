"""The record of a machine that runs instances, and the names of this machine."""

from __future__ import annotations

import os

from popdist.poprun.record import Record

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1"})


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
