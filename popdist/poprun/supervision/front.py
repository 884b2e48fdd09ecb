"""The process that mpirun sees in place of a guard.

mpirun ends a job by killing the process groups that it has started, and it grants them a second.
So that a guard can keep its own patience, and can always take its program down, it runs in a group
of its own behind this front, which passes signals on and answers for it.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` adds enums, for 6 ms
import os

from popdist.poprun.supervision.processes import lead_group, send, send_group

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that a program gets when mpirun, or the launcher, sends them."""

END_SOFTLY, END_AT_ONCE = signal.SIGALRM, signal.SIGABRT
"""What the launcher sends mpirun for guards on other hosts, where it cannot reach them itself.

mpirun carries both to all of its programs and does nothing about them, whereas after SIGTERM it
grants the programs a second, whatever --grace-period says."""


def run_behind_a_front(run: Callable[[int, int], int]) -> int:
    """Runs a guard in a process of its own and waits for it.

    Args:
        run: The guard; gets mpirun's process number and a descriptor, to which it writes the
            number of its program's process group.

    Returns:
        The guard's exit code; 128 + the number of the signal that killed it.
    """
    mpirun = os.getppid()
    reader, writer = os.pipe()
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
    for number in (*FORWARDED, END_SOFTLY, END_AT_ONCE):
        signal.signal(number, lambda number, _: send(guard, number))
    _, status = os.waitpid(guard, 0)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    group = os.read(reader, 32)
    if group:  # the guard was killed, and cannot do this any more
        send_group(int(group), signal.SIGKILL)
    return 128 - code
