"""A guard for one program on several hosts, and the process that mpirun sees in its place.

mpirun ends a job by killing the process groups that it has started, after a grace period of one
second. The guard runs in its own process group behind this proxy, so that the guard can apply its
own grace period and always end its program. The proxy forwards signals and returns the guard's exit
code.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` adds enums, for 5 ms
import os
import select
from time import time

from popdist.poprun.guard.guard import LAST_WORD_SECONDS, NOT_STARTED, Guard, passed_signals
from popdist.poprun.guard.loop import Loop
from popdist.poprun.guard.program import Origin
from popdist.poprun.guard.reporter import Reporter, open_channel
from popdist.poprun.protocol.frames import GUARD_KILLED, REFUSED
from popdist.poprun.protocol.guard_argv import read_words
from popdist.poprun.protocol.processes import (
    adopt_orphans,
    hear_of_parents_end,
    kill_descendants,
    kill_group,
    lead_group,
    process_start,
    send,
    watchable,
)
from popdist.poprun.protocol.signals import END_AT_ONCE, END_SOFTLY, FORWARDED, WAKE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from popdist.poprun.guard.reporter import PipeChannel, StreamChannel

_DELIVERY_SECONDS = 0.5


def main(arguments: list[str]) -> int:
    """Runs a guard with `guard_argv`'s words, and returns the exit code for mpirun."""
    settings, program = read_words(arguments, os.environ)
    try:
        channel = open_channel(settings)
    except OSError:  # the launcher is gone already
        return 0
    try:
        return _run(settings, program, channel)
    except BlockingIOError:  # there is no process for the guard
        Reporter(channel).notes([{"what": REFUSED}])
        select.select([], [], [], _DELIVERY_SECONDS)
        return NOT_STARTED


def _run(
    settings: Mapping[str, str], program: list[str], channel: PipeChannel | StreamChannel
) -> int:
    return run_behind_proxy(
        lambda mpirun, announce: _guard_one(settings, program, channel, mpirun, announce),
        on_killed=lambda: _report_killed(channel),
        adopts=settings.get("daemons") != "1",
    )


def _guard_one(
    settings: Mapping[str, str],
    program: list[str],
    channel: PipeChannel | StreamChannel,
    mpirun: int,
    announce: int,
) -> int:
    """Runs a program to its end; ``announce`` gets the number of its process group."""
    adopts = settings.get("daemons") != "1"
    above = (mpirun, os.getppid())
    mpirun_began = process_start(mpirun)
    loop = Loop(passed_signals(settings), channel.liveness, adopts=adopts, repeats=True)
    guard = Guard(settings, program, channel, Origin(dict(os.environ)), above=above)
    began = time()
    if not loop.add(guard):
        return NOT_STARTED
    os.write(announce, str(guard.pid).encode())
    while loop.guards:
        loop.turn()
    kill_group(guard.pid)
    if adopts:
        kill_descendants(LAST_WORD_SECONDS)
    if guard.orphaned:
        from popdist.poprun.guard.ending import remove_segments

        remove_segments(began)
    folder = channel.remove() if guard.launcher_lost else ""
    if folder:
        from popdist.poprun.guard.ending import remove_after

        remove_after(mpirun, folder)
    loop.be_over()  # first, as the launcher may answer the report at once
    code = guard.finish()
    if channel.liveness is not None:
        return code
    # Only reports that pass through mpirun can still be lost.
    from popdist.poprun.guard.ending import DRAIN_SECONDS, drain, see_daemon_out

    # Other programs of the daemon may have their grace period.
    patience = 0.0 if guard.is_cut_off else float(settings["grace"]) + DRAIN_SECONDS
    if not guard.orphaned:
        drain(loop.wake, [watchable(pid) for pid in above], patience, lambda: loop.is_released)
        patience = DRAIN_SECONDS
    if guard.orphaned or (guard.was_asked and not loop.is_released):
        see_daemon_out(mpirun, mpirun_began, os.environ, patience)
    return code


def _report_killed(channel: PipeChannel | StreamChannel) -> None:
    """Reports an instance's end for a killed guard, and waits while mpirun delivers the report."""
    report = Reporter(channel)
    report.ended(0, -signal.SIGKILL, 0, b"", lost=GUARD_KILLED, asked=False, speaks=False)
    if channel.liveness is None:
        select.select([], [], [], _DELIVERY_SECONDS)


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
        kill_group(int(group))
    if adopts:
        kill_descendants(LAST_WORD_SECONDS)
    on_killed()
    return 128 - code
