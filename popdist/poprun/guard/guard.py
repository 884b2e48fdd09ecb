"""The guard of one program: starts it, relays its output, reports its end, leaves no orphan.

A guard runs on the program's own host, in the process of `popdist.poprun.guard.host` (all programs
on one machine) or `popdist.poprun.guard.start` (one program, on several hosts). It

- sends output in whole lines and reports start and end to the launcher,
- passes signals on, and kills the program's process group when its patience is over,
- kills the group at once when the launcher or mpirun has ended, or cannot be reached,
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
from popdist.poprun.guard.reporter import Reporter
from popdist.poprun.guard.stall import ProgramStatus, ProgressWatch, StallWatch
from popdist.poprun.protocol import frames
from popdist.poprun.protocol.processes import (
    kill_group,
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
    from popdist.poprun.guard.program import Origin
    from popdist.poprun.guard.reporter import PipeChannel, StreamChannel
    from popdist.poprun.protocol.control_group import Group

    Actions = dict[int, tuple[Callable[[], bool], int]]

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, END_SOFTLY)
"""Signals after which a program has its grace period, and is killed then."""

NOT_STARTED = 1
"""The exit code for mpirun in place of a program that could not be started."""

LAST_WORD_SECONDS = 1.0
"""Seconds that descendants of a program may take to end after SIGKILL."""

_DRAIN_SECONDS = 0.3
_PROMPT_SECONDS = 0.1
_LOOK_SECONDS = 0.5  # where the kernel does not tell of the end of processes
_NEVER = float("inf")


def passed_signals(settings: Mapping[str, str]) -> set[int]:
    """The signals that a guard passes on to its program."""
    more = [number for number in settings.get("signals", "").split("+") if number]
    return {*FORWARDED, END_SOFTLY, *(int(number) for number in more)}


class Guard:
    """Runs one program to its end, as one of the guards of a `Loop`.

    Args:
        settings: How to behave, by name; `popdist.poprun.plan.mpirun` writes them.
        words: The program and its arguments.
        channel: The way to the launcher.
        origin: What mpirun gave the process that it started for this instance.
        above: Processes that must not disappear: mpirun, and the one that it started.

    Attributes:
        pid: The program's process, which leads a group of its own; 0 before the start.
        due: When to check next; infinite for never.
        was_asked: Whether the program was asked to end.
        orphaned: Why the program was ended without launcher or mpirun; empty where it was not.
        launcher_lost: Whether the launcher has ended.
        is_cut_off: Whether other hosts could not be reached.
    """

    def __init__(
        self,
        settings: Mapping[str, str],
        words: list[str],
        channel: PipeChannel | StreamChannel,
        origin: Origin,
        *,
        above: tuple[int, ...],
    ) -> None:
        self.pid = 0
        self.due = _NEVER
        self.was_asked = False
        self.orphaned = ""
        self.launcher_lost = False
        self.is_cut_off = False
        self._settings = settings
        self._words = words
        self._channel = channel
        self._origin = origin
        self._above = above
        self._grace = float(settings["grace"])
        self._asks_for_stacks = settings.get("stacks") == "1"
        self._stacks = ""
        self._kill_at: float | None = None
        self._wants_stacks = False
        self._look_at = 0.0
        self._may_have_ended = False
        self._exit_status: int | None = None
        self._drain_until = 0.0
        self._peak_memory = 0
        self._unwatched: list[int] = []
        self._status = ProgramStatus()
        self._progress = ProgressWatch(float(settings.get("progress", "0")), self._status)
        self._group: Group | None = None
        self._heartbeat: Heartbeat | None = None
        if "heartbeat" in settings:
            from popdist.poprun.guard.heartbeat import Heartbeat

            self._heartbeat = Heartbeat(float(settings["heartbeat"]), above[0], channel.outlet)

    def start(self) -> bool:
        """Starts the program; False where the kernel refuses a process, which is reported."""
        self._report = Reporter(self._channel)
        if how := self._settings.get("group"):
            from popdist.poprun.protocol.control_group import Group

            try:
                self._group = Group(self._settings["job"], self._settings["index"])
                self._origin.group = self._group
            except OSError as error:
                self._origin.group = error
            self._origin.needs_group = how == "asked"
        try:
            program = start_program(
                self._settings,
                self._words,
                self._origin,
                resets=(*passed_signals(self._settings), END_AT_ONCE, KILL_NOW, WAKE),
                status_fd=self._status.fd,
            )
        except BlockingIOError:
            self._report.notes([{"what": frames.REFUSED}])
            return False
        self.pid = program.pid
        self._held = program.held
        self._stall = StallWatch(float(self._settings.get("stall", "0")), self.pid, self._status)
        self._out = Stream(program.out, "stdout", self._settings)
        self._err = Stream(program.err, "stderr", self._settings)
        self._open = {self._out.fd, self._err.fd}
        self._report.started(self.pid)
        return True

    def actions(self) -> Actions:
        """What to do about each descriptor, and for which events.

        An action returns whether more can follow.
        """
        found: Actions = {
            self._out.fd: (lambda: self._pump(self._out), select.POLLIN),
            self._err.fd: (self._pump_errors, select.POLLIN),
        }
        for pid, action in (
            (self.pid, self._on_program_end),
            *((pid, self.on_mpirun_end) for pid in self._above),
        ):
            fd = watchable(pid)
            if fd is not None:
                found[fd] = (action, select.POLLIN)
            elif process_start(pid):
                self._unwatched.append(pid)
            else:
                action()
        self._may_have_ended |= self.pid in self._unwatched
        self._plan()
        return found

    def check(self, *, idle: bool) -> bool:
        """Runs the checks that are due; returns whether the program has ended and all is read.

        ``idle`` is whether nothing has happened since the last check.
        """
        if idle:
            for stream in (self._out, self._err):
                stream.idle(self._channel)
        if any(not process_start(pid) for pid in self._unwatched if pid != self.pid):
            self.on_mpirun_end()
        if self._kill_at is not None and monotonic() >= self._kill_at:
            self._kill_at = None
            self.kill()
        self._look()
        if self._exit_status is None and self._may_have_ended:
            self._exit_status = self._wait()
            if self._exit_status is not None:
                self._drain_until = monotonic() + _DRAIN_SECONDS
                if self._exit_status and not (self.orphaned or self.was_asked):
                    notes = [{"what": "failed", "status": str(self._exit_status)}]
                    self._report.notes(notes)
        if self._exit_status is None or (self._open and monotonic() < self._drain_until):
            self._plan()
            return False
        return True

    def finish(self) -> int:
        """Kills the rest of the group, reports the end, and returns the exit code for mpirun.

        The code is 128 + the signal's number for a killed program, and 0 where the launcher is
        gone.
        """
        kill_group(self.pid)
        if self._group is not None:
            self._group.end(LAST_WORD_SECONDS)
        for stream in (self._out, self._err):
            stream.close(self._channel)
        self._report.stacks(self._stacks)
        self._report.notes(self._progress.look(at_end=True))
        if trained := self._status.end():
            self._report.notes([{"what": "trained", "stated": trained}])
        status = self._exit_status or 0
        self._report.ended(
            self.pid,
            status,
            self._peak_memory,
            self._err.tail,
            lost=self.orphaned,
            asked=self.was_asked,
            speaks=bool(self._status.position()[0]),
        )
        for fd in (self._out.fd, self._err.fd, self._status.fd, *self._held):
            if fd is not None:
                os.close(fd)
        if self.launcher_lost:
            return 0  # nobody asks any more, and after a failure mpirun would take a second to end
        return status if status >= 0 else 128 - status

    def on_signal(self, number: int) -> None:
        """Passes a signal on to the program, and kills it after its grace period if it ends it."""
        ends = number in ENDING and self._kill_at is None
        # Others may be asked to end because of the end of this program.
        self.was_asked |= ends and self._exit_status is None
        if ends and self._asks_for_stacks:
            self._stacks = self._status.dump()
        send_group(self.pid, signal.SIGTERM if number == END_SOFTLY else number)
        if ends:
            send_group(self.pid, signal.SIGCONT)  # a stopped program must wake up to end
            self._kill_at = monotonic() + self._grace

    def on_wake(self) -> None:
        """Asks for the program's Python stacks, where its waiting is watched."""
        self._wants_stacks = self._stall.interval is not None

    def on_launcher_end(self) -> bool:
        """Ends the program, whose launcher is gone."""
        self.launcher_lost = True
        return self._abandon("poprun ended")

    def on_mpirun_end(self) -> bool:
        """Ends the program, unless the launcher is there and grants it time."""
        if self.was_asked and self._channel.liveness is not None:
            # mpirun is less patient with a program that was asked to end than the user may be;
            # the launcher is still there.
            return False
        return self._abandon("mpirun ended")

    def kill(self) -> None:
        """Kills the program and its group."""
        send(self.pid, signal.SIGKILL)  # the program may have left its own group
        kill_group(self.pid)

    def _pump(self, stream: Stream) -> bool:
        more = stream.pump(self._channel)
        if not more:
            self._open.discard(stream.fd)
        return more

    def _pump_errors(self) -> bool:
        more = self._pump(self._err)
        self._report.notes(self._stall.hear(self._err.tail))
        return more

    def _look(self) -> None:
        """Looks whether the program waits, moves, and can reach other hosts."""
        if self._wants_stacks and not self.was_asked:
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
            if self._heartbeat.has_lost_its_way():
                self.is_cut_off = True
                self._abandon("the other hosts could not be reached")
            self._report.notes([{"what": "alive"}])

    def _plan(self) -> None:
        """Sets the moment of the next check."""
        now = monotonic()
        moments = [moment for moment in (self._kill_at, self._drain_until) if moment]
        waits = [one for one in (self._stall.interval, self._progress.interval) if one]
        if self._heartbeat is not None:
            waits.append(self._heartbeat.wait(now))
        if self._out.is_waiting or self._err.is_waiting:
            waits.append(_PROMPT_SECONDS)
        if self._unwatched:
            waits.append(_LOOK_SECONDS)
        self.due = min([*moments, *(now + wait for wait in waits)], default=_NEVER)

    def _wait(self) -> int | None:
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        if not pid:
            return None
        self._peak_memory = usage.ru_maxrss * 1024
        return os.waitstatus_to_exitcode(status)

    def _on_program_end(self) -> bool:
        self._may_have_ended = True
        return False

    def _abandon(self, why: str) -> bool:
        self.orphaned = self.orphaned or why
        self.kill()
        return False
