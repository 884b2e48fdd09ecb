"""Decides when a running job is asked to end and when it is killed, and signals the guards."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` adds enums, for 5 ms
from time import monotonic

from popdist.poprun.protocol.processes import send
from popdist.poprun.protocol.signals import END_AT_ONCE, END_SOFTLY, KILL_NOW, WAKE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

    from popdist.poprun.plan.job import Job
    from popdist.poprun.supervisor.outcome import Ending, InstanceRecord, Outcome
    from popdist.poprun.supervisor.relay import Relay
    from popdist.poprun.supervisor.watchdog import Watchdog

GUARDS_LAST_WORD = 1.0
_MPIRUNS_LAST_WORD = 3.0  # it takes up to two seconds to clean up after a program that was killed
_BY_MPIRUN = {signal.SIGTERM: END_SOFTLY, KILL_NOW: END_AT_ONCE}


class Termination:
    """Ends one job.

    Args:
        job: The job.
        outcome: What is known of it.
        watchdog: The judgement of it.

    Attributes:
        mpirun: mpirun's process; 0 before it was started.
    """

    def __init__(self, job: Job, outcome: Outcome, watchdog: Watchdog) -> None:
        self.mpirun = 0
        self._outcome = outcome
        self._watchdog = watchdog
        self._num_instances = job.num_instances
        self._is_local = job.is_local
        self._last_word = job.limits.grace_period + _MPIRUNS_LAST_WORD
        self._kill_at: float | None = None
        self._report_until: float | None = None
        self._released = False

    def wait(self, now: float) -> float | None:
        """Seconds until the next decision; None to wait for an event."""
        if self._kill_at is not None:
            return self._kill_at - now
        if self._report_until is not None and now < self._report_until:
            return self._report_until - now
        return None

    def has_patience(self, now: float) -> bool:
        """Whether programs here that were asked to end may take longer than mpirun allows."""
        waits = self._is_local and self._outcome.is_over and self.wait(now) is not None
        return waits and bool(self._outcome.running())

    def react(self, relay: Relay) -> None:
        """Reacts to new reports and deadlines."""
        outcome = self._outcome
        if outcome.interrupted or outcome.ending:  # it came while these were on their way
            self._signal(relay.started, signal.SIGTERM)
        relay.started.clear()
        if relay.closed and not outcome.interrupted:
            self._interrupt(signal.SIGPIPE)
        now = monotonic()
        ending = self._watchdog.judge(now)
        if ending is not None:
            self.end(ending)
        if self._watchdog.wants_stacks:
            self._watchdog.wants_stacks = False
            self._signal(outcome.running(), WAKE)
        if not self._is_local:
            self._stand_in_for_mpirun()
        # mpirun ends by itself after a failure and after the last instance; if it should not, the
        # job must not hang.
        may_end = outcome.first_failure is not None or self._all_have_ended()
        if may_end and self._kill_at is None and not outcome.forced:
            self._kill_at = now + self._last_word
        if self._kill_at is not None and now >= self._kill_at:
            self._force(now)

    def on_user(self, number: int, _frame: FrameType | None) -> None:
        """Forwards a signal to the programs."""
        self._signal(self._outcome.running(), number)

    def on_interrupt(self, number: int, _frame: FrameType | None) -> None:
        """Ends the job; a second interrupt ends the job at once."""
        if not self._outcome.interrupted:
            self._interrupt(number)
            return
        self._signal(self._outcome.running(), KILL_NOW)
        self._kill_at = monotonic() + _MPIRUNS_LAST_WORD

    def _interrupt(self, number: int) -> None:
        self._outcome.interrupted = number
        self._ask_to_end()

    def end(self, ending: Ending) -> None:
        """Ends the job for a reason of the launcher's own."""
        self._outcome.ending = ending
        self._ask_to_end()
        if ending.kind == "host":  # nobody is left there who could be asked
            self._kill_at = monotonic() + GUARDS_LAST_WORD

    def _ask_to_end(self) -> None:
        self._kill_at = monotonic() + self._last_word
        self._signal(self._outcome.running(), signal.SIGTERM)
        # Before guards have started mpirun is all there is; it ends what it has started.
        if not self._outcome.instances:
            self._tell_mpirun(signal.SIGTERM)

    def _stand_in_for_mpirun(self) -> None:
        """Signals programs on other hosts, for which mpirun has a shorter grace period."""
        broken = self._outcome.first_failure is not None or self._outcome.first_lost is not None
        if broken and self._kill_at is None and not self._outcome.forced:
            self._ask_to_end()
        if self._all_have_ended() and not self._released:
            self._released = True
            self._tell_mpirun(END_AT_ONCE)  # there is nothing to end, so guards may leave

    def _force(self, now: float) -> None:
        self._outcome.forced = True
        self._kill_at = None
        self._tell_mpirun(signal.SIGKILL)  # guards see its end and kill their programs
        if self._is_local:
            self._signal(self._outcome.running(), KILL_NOW)
        self._report_until = now + GUARDS_LAST_WORD

    def _all_have_ended(self) -> bool:
        ended = sum(one.ended for one in self._outcome.instances.values())
        return ended == self._num_instances

    def _signal(self, instances: Iterable[InstanceRecord], number: int) -> None:
        guards = dict.fromkeys(one.guard for one in instances)  # one may guard them all
        if self._is_local:
            for guard in guards:
                send(guard, number)
        elif guards:
            self._tell_mpirun(_BY_MPIRUN.get(number, number))

    def _tell_mpirun(self, number: int) -> None:
        if self.mpirun and self._outcome.mpirun_code is None:
            send(self.mpirun, number)
