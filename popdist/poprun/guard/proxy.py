"""The process that mpirun sees in place of a guard.

mpirun ends a job by killing the process groups that it has started, and it grants them a second.
So that a guard can keep its own patience, and can always take its program down, it runs in a group
of its own behind this front, which passes signals on and answers for it.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` adds enums, for 6 ms
import os
import select
from time import monotonic

from popdist.poprun.protocol.processes import lead_group, process_start, send, send_group, watchable

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


# How a guard outlives its program until the launcher has heard everything.
#
# An mpirun whose last program has ended drops what is still on its way, and one of whose programs
# has failed ends the others with no more than a second's grace.


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


# Removes what a killed launcher has left, when even its guards are about to end.


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
