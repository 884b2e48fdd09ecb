"""Removes what a killed launcher has left, when even its guards are about to end."""

from __future__ import annotations

import os
from time import monotonic

from popdist.poprun.supervision.processes import process_start, send, watchable

_PATIENCE = 1.2
_SIGKILL = 9


def reap(folder: str, mpirun: int) -> None:
    """Starts a process that sees mpirun out and then removes the job's folder.

    Args:
        folder: The job's folder.
        mpirun: mpirun, which keeps files of its own in there while it runs.
    """
    if os.fork():
        return
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):  # mpirun would wait for their end
            os.dup2(nothing, fd)
        os.closerange(3, 256)
        _see_out(mpirun)
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(0)


def _see_out(mpirun: int) -> None:
    import select

    began = process_start(mpirun)
    ended = watchable(mpirun)
    until = monotonic() + _PATIENCE
    while began and process_start(mpirun) == began:
        if monotonic() >= until:
            send(mpirun, _SIGKILL)
            until = monotonic() + _PATIENCE
        select.select([] if ended is None else [ended], [], [], 0.1)
