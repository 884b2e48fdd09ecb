"""How a guard outlives its program until the launcher has heard everything.

An mpirun whose last program has ended drops what is still on its way, and one of whose programs has
failed ends the others with no more than a second's grace.
"""

from __future__ import annotations

import os
import select
from time import monotonic

TYPE_CHECKING = False  # a guard starts in half the time without `typing`; checkers know the name
if TYPE_CHECKING:
    from collections.abc import Callable

_LINGER_SECONDS = 2.0  # less than the launcher grants mpirun
_LOOK_SECONDS = 0.5  # between looks whether the guard may leave


def linger(wake: int, above: list[int | None], grace: float, may_leave: Callable[[], bool]) -> None:
    """Stays until the launcher says that it has heard, or those above are gone, or time is up.

    Args:
        wake: A descriptor that can be read after each signal.
        above: Descriptors that can be read when mpirun or what it started has ended.
        grace: Seconds that programs get to end.
        may_leave: Whether the launcher has heard everything.
    """
    poll = select.poll()
    for fd in (wake, *above):
        if fd is not None:
            poll.register(fd, select.POLLIN)
    until = monotonic() + grace + _LINGER_SECONDS
    while not may_leave() and monotonic() < until:
        events = [fd for fd, _ in poll.poll(_LOOK_SECONDS * 1000)]
        if wake in events:
            os.read(wake, 1024)
        if any(fd != wake for fd in events):
            return
