"""Partitions of this machine's devices, shared between launches without a server.

::

    request (what the job wants) -> clusters (which devices there are)
        -> pool (partitions as files, one lock) -> holds (one lock per device) -> reservation

A device is in use while any process holds a lock on the device's file: the launcher, the guard and
the program all hold one. The kernel releases the locks of processes that are killed, so a device in
use is never assigned twice, and a free device is never blocked.
"""
