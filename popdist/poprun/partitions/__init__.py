"""Partitions of this machine's devices, shared between launches without a server.

::

    request (what the job wants) -> clusters (which devices there are)
        -> pool (partitions as files, one lock) -> holds (one lock per device) -> reservation

A device is in use as long as any process has its file locked: the launcher, the guard and the
program itself all do. The kernel takes locks back from processes that are killed, so nothing that
is in use is ever given away, and nothing that is free stays taken.
"""
