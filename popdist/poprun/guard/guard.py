"""The process that runs beside each program: relays its output, reports its end, leaves no orphan.

mpirun starts a guard for every instance, on the instance's own host; the guard starts the program
in a process group of its own and

- sends output in whole lines and reports start and end to the launcher,
- passes signals on, and kills the group when its patience is over,
- kills the group at once when the launcher or mpirun has ended, or cannot be reached,
- adopts the program's detached processes, and kills them at the end,
- reports when the program waits for other instances for too long.

The guard imports little, because every launch waits for the imports.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` adds enums, for 5 ms
import os
import select
from time import monotonic

from popdist.poprun.guard.output import Stream
from popdist.poprun.guard.program import start_program
from popdist.poprun.guard.proxy import LAST_WORD_SECONDS, run_behind_proxy
from popdist.poprun.guard.reporter import Reporter, open_channel
from popdist.poprun.guard.stall import ProgramStatus, ProgressWatch, StallWatch
from popdist.poprun.protocol.frames import GUARD_KILLED
from popdist.poprun.protocol.guard_argv import read_words
from popdist.poprun.protocol.processes import (
    adopt_orphans,
    hear_of_parents_end,
    kill_descendants,
    process_start,
    send,
    send_group,
    watchable,
)
from popdist.poprun.protocol.signals import END_AT_ONCE, END_SOFTLY, FORWARDED, KILL_NOW, WAKE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from popdist.poprun.guard.heartbeat import Heartbeat
    from popdist.poprun.guard.reporter import PipeChannel, StreamChannel

_DRAIN_SECONDS = 0.3
_PROMPT_SECONDS = 0.1
_LOOK_SECONDS = 0.5  # where the kernel does not tell of the end of processes
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, END_SOFTLY)


class Guard:
    """Runs one program to its end.

    Args:
        settings: How to behave, by name; `popdist.poprun.plan.mpirun` writes them.
        program: The program and its arguments.
        channel: The way to the launcher.
        mpirun: The process that must not disappear.
    """

    def __init__(
        self,
        settings: Mapping[str, str],
        program: list[str],
        channel: PipeChannel | StreamChannel,
        mpirun: int,
    ) -> None:
        self._settings = settings
        self._program = program
        self._channel = channel
        self._mpirun = mpirun
        self._proxy = os.getppid()
        self._grace = float(settings["grace"])
        self._was_asked = False
        more = [number for number in settings.get("signals", "").split("+") if number]
        self._passed = {*FORWARDED, END_SOFTLY, *(int(number) for number in more)}
        self._asks_for_stacks = settings.get("stacks") == "1"
        self._stacks = ""
        self._kill_at: float | None = None
        self._orphaned = ""
        self._launcher_lost = False
        self._left_folder = ""
        self._is_cut_off = False
        self._adopts = settings.get("daemons") != "1"
        self._wants_stacks = False
        self._look_at = 0.0
        self._pid = 0
        self._may_have_ended = False
        self._is_over = False
        self._may_leave = False
        self._status = ProgramStatus()
        self._progress = ProgressWatch(float(settings.get("progress", "0")), self._status)
        self._heartbeat: Heartbeat | None = None
        if "heartbeat" in settings:
            from popdist.poprun.guard.heartbeat import Heartbeat

            self._heartbeat = Heartbeat(float(settings["heartbeat"]), mpirun)

    def run(self, announce: int) -> int:
        """Runs the program to its end and returns the exit code for mpirun.

        The code is 128 + the signal's number for a killed program, and 0 where the launcher is
        gone. The descriptor ``announce`` gets the number of the program's process group.
        """
        self._report = Reporter(self._channel)
        hear_of_parents_end(WAKE)
        if self._adopts:
            adopt_orphans()
        program = start_program(
            self._settings,
            self._program,
            resets=(*self._passed, END_AT_ONCE, KILL_NOW, WAKE),
            status_fd=self._status.fd,
        )
        self._pid = program.pid
        self._hear_signals()
        os.write(announce, str(self._pid).encode())
        self._stall = StallWatch(float(self._settings.get("stall", "0")), self._pid, self._status)
        out = Stream(program.out, "stdout", self._settings)
        err = Stream(program.err, "stderr", self._settings)
        self._report.started(self._pid)
        status = self._watch([out, err])
        self._kill_all()
        for stream in (out, err):
            stream.close(self._channel)
        self._report.stacks(self._stacks)
        self._report.notes(self._progress.look(at_end=True))
        self._is_over = True
        self._report.ended(
            self._pid,
            status,
            self._peak_memory,
            err.tail,
            lost=self._orphaned,
            asked=self._was_asked,
            speaks=bool(self._status.position()[0]),
        )
        self._drain()
        if self._launcher_lost:
            return 0  # nobody asks any more, and after a failure mpirun would take a second to end
        return status if status >= 0 else 128 - status

    def _hear_signals(self) -> None:
        self._wake, wake_end = os.pipe()
        os.set_blocking(wake_end, False)
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        for number in self._passed:
            signal.signal(number, self._on_signal)
        signal.signal(KILL_NOW, lambda *_: self._kill_group())
        signal.signal(WAKE, self._on_wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(END_AT_ONCE, self._on_end_at_once)

    def _watch(self, streams: list[Stream]) -> int:
        """Relays until the program has ended and its output is read."""
        poll = select.poll()
        actions = self._register(poll, streams)
        status: int | None = None
        drain_until = 0.0
        readable = {stream.fd for stream in streams}
        while status is None or (readable and monotonic() < drain_until):
            events = poll.poll(self._patience(streams, drain_until))
            for fd, _ in events:
                if not actions[fd]():
                    poll.unregister(fd)
                    readable.discard(fd)
                if fd == streams[1].fd:
                    self._report.notes(self._stall.hear(streams[1].tail))
            if not events:
                for stream in streams:
                    stream.idle(self._channel)
            self._check()
            if status is None and self._may_have_ended:
                status = self._wait()
                if status is not None:
                    drain_until = monotonic() + _DRAIN_SECONDS
                    if status and not (self._orphaned or self._was_asked):
                        self._report.notes([{"what": "failed", "status": str(status)}])
        return status

    def _register(self, poll: select.poll, streams: list[Stream]) -> dict[int, Callable[[], bool]]:
        """The action per descriptor; an action returns whether more data can follow."""
        actions: dict[int, Callable[[], bool]] = {
            stream.fd: stream.pumping(self._channel) for stream in streams
        }
        actions[self._wake] = self._drain_wakes
        self._unwatched: list[int] = []
        for pid, action in (
            (self._pid, self._on_program_end),
            (self._proxy, self._on_mpirun_end),
            (self._mpirun, self._on_mpirun_end),
        ):
            fd = watchable(pid)
            if fd is not None:
                actions[fd] = action
            elif process_start(pid):
                self._unwatched.append(pid)
            else:
                action()
        self._may_have_ended |= self._pid in self._unwatched
        for fd in actions:
            poll.register(fd, select.POLLIN)
        if self._channel.liveness is not None:
            actions[self._channel.liveness] = self._on_launcher_end
            poll.register(self._channel.liveness, 0)
        return actions

    def _check(self) -> None:
        """Runs the periodic checks and enforces time limits."""
        if any(not process_start(pid) for pid in self._unwatched if pid != self._pid):
            self._on_mpirun_end()
        if self._kill_at is not None and monotonic() >= self._kill_at:
            self._kill_at = None
            self._kill_group()
        if self._wants_stacks and not self._was_asked:
            self._stacks = self._status.dump()
        self._wants_stacks = False
        text, self._stacks = self._stacks, ""
        self._report.stacks(text)
        now = monotonic()
        if now >= self._look_at:  # this code runs for each piece of output
            self._look_at = now + (self._stall.interval or 0.0)
            self._report.notes(self._stall.look())
        self._report.notes(self._progress.look())
        if self._heartbeat is not None and self._heartbeat.is_due():
            self._report.notes([{"what": "alive"}])
            if self._heartbeat.has_lost_its_way():
                self._is_cut_off = True
                self._abandon("the other hosts could not be reached")

    def _patience(self, streams: list[Stream], drain_until: float) -> float | None:
        """Milliseconds to wait for the next event; None without a limit."""
        now = monotonic()
        waits = [moment - now for moment in (self._kill_at, drain_until or None) if moment]
        waits += [one for one in (self._stall.interval, self._progress.interval) if one]
        if self._heartbeat is not None:
            waits.append(self._heartbeat.wait(now))
        if any(stream.is_waiting for stream in streams):
            waits.append(_PROMPT_SECONDS)
        if self._unwatched:
            waits.append(_LOOK_SECONDS)
        return max(0.0, min(waits)) * 1000 if waits else None

    def _wait(self) -> int | None:
        pid, status, usage = os.wait4(self._pid, os.WNOHANG)
        if not pid:
            return None
        self._peak_memory = usage.ru_maxrss * 1024
        return os.waitstatus_to_exitcode(status)

    def _drain_wakes(self) -> bool:
        os.read(self._wake, 1024)
        self._reap_orphans()
        return True

    def _reap_orphans(self) -> None:
        """Reaps adopted processes that have ended; the program itself is reaped elsewhere."""
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            while (ended := os.waitid(os.P_ALL, 0, how)) and ended.si_pid != self._pid:
                os.waitpid(ended.si_pid, 0)
        except ChildProcessError:  # there are no children
            pass

    def _on_signal(self, number: int, _frame: object) -> None:
        ends = number in _ENDING and self._kill_at is None
        self._was_asked |= ends
        if ends and self._asks_for_stacks:
            self._stacks = self._status.dump()
        send_group(self._pid, signal.SIGTERM if number == END_SOFTLY else number)
        if ends:
            send_group(self._pid, signal.SIGCONT)  # a stopped program must wake up to end
            self._kill_at = monotonic() + self._grace

    def _on_end_at_once(self, _number: int, _frame: object) -> None:
        self._may_leave = self._is_over
        self._kill_group()

    def _on_wake(self, _number: int, _frame: object) -> None:
        self._wants_stacks = self._stall.interval is not None

    def _drain(self) -> None:
        # Only reports that pass through mpirun can still be lost.
        if self._channel.liveness is None and not self._orphaned:
            from popdist.poprun.guard.ending import drain

            above = [watchable(self._proxy), watchable(self._mpirun)]
            drain(self._wake, above, self._grace, lambda: self._may_leave)

    def _on_program_end(self) -> bool:
        self._may_have_ended = True
        return False

    def _on_mpirun_end(self) -> bool:
        if self._was_asked and self._channel.liveness is not None:
            # mpirun is less patient with a program that was asked to end than the user may be;
            # the launcher is still there.
            return False
        return self._abandon("mpirun ended")

    def _on_launcher_end(self) -> bool:
        self._launcher_lost = True
        self._left_folder = self._channel.remove()
        return self._abandon("poprun ended")

    def _abandon(self, why: str) -> bool:
        self._orphaned = self._orphaned or why
        self._kill_group()
        return False

    def _kill_group(self) -> None:
        send(self._pid, signal.SIGKILL)  # the program may have left its own group
        send_group(self._pid, signal.SIGKILL)

    def _kill_all(self) -> None:
        """Kills all remaining processes of the program, also detached processes."""
        send_group(self._pid, signal.SIGKILL)
        if self._adopts:
            kill_descendants(LAST_WORD_SECONDS)
        if self._left_folder:
            from popdist.poprun.guard.ending import remove_after

            remove_after(self._mpirun, self._left_folder)
        elif self._orphaned and self._channel.liveness is None:
            from popdist.poprun.guard.ending import see_daemon_out

            see_daemon_out(self._mpirun, os.environ, cut_off=self._is_cut_off)


def _report_killed(channel: PipeChannel | StreamChannel) -> None:
    """Reports an instance's end for a killed guard, and waits while mpirun delivers the report."""
    report = Reporter(channel)
    report.ended(0, -signal.SIGKILL, 0, b"", lost=GUARD_KILLED, asked=False, speaks=False)
    if channel.liveness is None:
        select.select([], [], [], _LOOK_SECONDS)


def main(arguments: list[str]) -> int:
    """Runs a guard with `guard_argv`'s words, and returns the exit code for mpirun."""
    settings, program = read_words(arguments, os.environ)
    try:
        channel = open_channel(settings)
    except OSError:  # the launcher is gone already
        return 0
    return run_behind_proxy(
        lambda mpirun, announce: Guard(settings, program, channel, mpirun).run(announce),
        on_killed=lambda: _report_killed(channel),
        adopts=settings.get("daemons") != "1",
    )
