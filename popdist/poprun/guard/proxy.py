"""The process that mpirun sees in place of a guard.

mpirun ends a job by killing the process groups that it has started, after a grace period of one
second. The guard runs in its own process group behind this proxy, so that the guard can apply its
own grace period and always end its program. The proxy forwards signals and returns the guard's exit
code.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` adds enums, for 5 ms
import os

from popdist.poprun.protocol.processes import (
    adopt_orphans,
    hear_of_parents_end,
    kill_descendants,
    lead_group,
    send,
    send_group,
)
from popdist.poprun.protocol.signals import END_AT_ONCE, END_SOFTLY, FORWARDED, WAKE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LAST_WORD_SECONDS = 1.0
"""Seconds that descendants of a program may take to end after SIGKILL."""


def run_behind_proxy(
    run: Callable[[int, int], int], *, on_killed: Callable[[], None], adopts: bool
) -> int:
    """Runs a guard in a child process, and returns its exit code (128 + signal if killed).

    ``run`` gets mpirun's process number, and a descriptor for the number of the program's process
    group. ``on_killed`` reports a killed guard. With ``adopts``, descendants of the program are
    killed if the guard is killed.
    """
    mpirun = os.getppid()
    reader, writer = os.pipe()
    if adopts:
        adopt_orphans()
    hear_of_parents_end(WAKE)
    guard = os.fork()
    if guard == 0:
        lead_group(0)
        os.close(reader)
        code = 1
        try:
            code = run(mpirun, writer)
        finally:
            os._exit(code)
    os.close(writer)
    lead_group(guard)
    for number in (*FORWARDED, END_SOFTLY, END_AT_ONCE, WAKE):
        signal.signal(number, lambda number, _: send(guard, number))
    _, status = os.waitpid(guard, 0)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    group = os.read(reader, 32)
    if group:  # the guard was killed, and cannot do this any more
        send_group(int(group), signal.SIGKILL)
    if adopts:
        kill_descendants(LAST_WORD_SECONDS)
    on_killed()
    return 128 - code
