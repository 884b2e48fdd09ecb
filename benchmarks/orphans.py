"""Processes whose parent ended first: a launcher leaves them, and nobody counts their time.

A process's time is added to its parent's when it is waited for, and an orphan's new parent is the
machine's init. What an orphan computed would pass for a stranger's work.
"""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_SET_CHILD_SUBREAPER = 36
_GRACE = 5.0
_PAUSE = 0.02


@contextmanager
def adopted() -> Iterator[None]:
    """Takes over what the block's processes leave behind, and waits for it to end.

    At the end of the block every process that it started itself must have been waited for.

    Source: ``PR_SET_CHILD_SUBREAPER`` in prctl(2).
    """
    _become_subreaper(on=True)
    try:
        yield
        deadline = time.monotonic() + _GRACE
        while _reap() and time.monotonic() < deadline:
            time.sleep(_PAUSE)
    finally:
        _become_subreaper(on=False)


def _become_subreaper(*, on: bool) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_CHILD_SUBREAPER, int(on), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this kernel gives orphans to init alone")


def _reap() -> bool:
    """Waits for what has ended; whether anything has not."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
