"""Judges a running job: whether the job is over time, stalled, or cut off from a host."""

from __future__ import annotations

from popdist.poprun.protocol.frames import BEATS
from popdist.poprun.supervisor.outcome import ENDED_UNHEARD, Ending, name_instances

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from popdist.poprun.options.requests import Limits
    from popdist.poprun.plan.placement import Instance
    from popdist.poprun.supervisor.outcome import Outcome

TIMEOUT_CODE = 124
_LOST_HOST_CODE = 1
_GATHER_SECONDS = 0.6
"""Seconds from the first sign of a stall to the verdict, to collect the other instances' signs and
the requested stacks."""

EARLY_SECONDS = 30.0
"""Seconds that others may run after an instance has succeeded, before a message is printed."""

_OVERSLEPT_SECONDS = 2.0


class Watchdog:
    """Keeps in mind what was heard of a job, and when.

    Args:
        limits: How the job may end.
        instances: Its placed instances.
        outcome: What is known of it.
        deadline: The moment by which it must have ended; None for none.
        is_local: Whether all instances are on this machine, where hosts cannot be lost.
        tell: Shows a remark.

    Attributes:
        wants_stacks: Whether guards have to be asked for their programs' Python stacks.
    """

    def __init__(
        self,
        limits: Limits,
        instances: Sequence[Instance],
        outcome: Outcome,
        *,
        deadline: float | None,
        is_local: bool,
        tell: Callable[[str], None],
    ) -> None:
        self.wants_stacks = False
        self._limits = limits
        # Guards notice waiting after the shorter of two times, so ending may have to wait a while.
        wait, warning = limits.stall_timeout, limits.stall_warning
        self._until_end = wait - limits.longest_wait + _GATHER_SECONDS if wait else None
        self._has_warned = not warning or bool(wait and warning >= wait)
        self._instances = instances
        self._outcome = outcome
        self._deadline = deadline
        self._tell = tell
        self._heard: dict[str, float] | None = None if is_local else {}
        self._first_word = 0.0
        self._last_look = 0.0
        self._waiting: dict[int, str] = {}
        self._stopped: set[int] = set()
        self._missing: dict[int, str] = {}
        self._stalled_at: float | None = None
        self._end_at: float | None = None
        self._mute: set[int] = set()
        self._mute_since: float | None = None
        self._early_after = limits.stall_timeout or EARLY_SECONDS
        self._early_since: float | None = None
        self._early_told = False

    def hear(self, index: int, now: float) -> None:
        """Records the time of a report by an instance's guard."""
        if self._heard is not None:
            self._first_word = self._first_word or now
            self._heard[self._instances[index].host.name] = now

    def note(self, index: int, fields: Mapping[str, str], now: float) -> None:
        """Records a guard's note about waiting."""
        what, where = fields["what"], fields.get("where", "")
        if what == "waits":
            self._waiting[index] = where
        elif what == "stopped":
            self._stopped.add(index)
        elif what == "horovod":
            self._missing.update({int(rank): where for rank in fields["missing"].split(",")})
        elif what == "mute":
            if self._limits.stall_timeout:
                self._mute.add(index)
                self._mute_since = self._mute_since or now
            return
        elif what == "moves":
            self._waiting.pop(index, None)
            self._stopped.discard(index)
            if not (self._waiting or self._stopped or self._missing):
                self._stalled_at = self._end_at = None
            return
        else:
            return
        if self._stalled_at is None:
            self._stalled_at = now
            self.wants_stacks = True
        if self._until_end is not None:
            # Horovod itself was told to wait for as long as the job may.
            end_at = now + (_GATHER_SECONDS if what == "horovod" else self._until_end)
            self._end_at = min(end_at, self._end_at or end_at)

    def wait(self, now: float) -> float | None:
        """Seconds until the next check; None to wait for an event."""
        if self._outcome.is_over:
            return None
        moments = [self._deadline, self._end_at, self._warning_at]
        if self._mute_since is not None:
            moments.append(self._mute_since + _GATHER_SECONDS)
        if self._early_since is not None and not self._early_told:
            moments.append(self._early_since + self._early_after)
        if self._heard:
            moments.append(now + self._limits.host_timeout / BEATS)
        known = [moment - now for moment in moments if moment is not None]
        return max(0.0, min(known)) if known else None

    def judge(self, now: float) -> Ending | None:
        """The reason to end the job, or None."""
        if self._outcome.is_over:
            return None
        if self._deadline is not None and now >= self._deadline:
            text = f"the job was ended after {self._limits.timeout:g} s, as --timeout asks"
            return Ending("timeout", TIMEOUT_CODE, text, with_stacks=True)
        self._remark_early_end(now)
        self._remark_mute(now)
        self._warn_of_stall(now)
        if self._end_at is not None and now >= self._end_at:
            return self._stall()
        return self._lost_host(now)

    @property
    def _warning_at(self) -> float | None:
        # An instance that is stopped stands in nobody's way before another waits.
        if self._has_warned or self._stalled_at is None or not (self._waiting or self._missing):
            return None
        return self._stalled_at + _GATHER_SECONDS

    def _warn_of_stall(self, now: float) -> None:
        if self._warning_at is not None and now >= self._warning_at:
            self._has_warned = True
            seconds = self._limits.stall_warning
            text = f"no progress in a collective for {seconds:g} s; the job continues"
            if not self._limits.stall_timeout:
                text += " (--stall-timeout=SECONDS ends such a job)"
            self._tell("\npoprun:   ".join([text, *self._who_waits()[0]]))

    def _stall(self) -> Ending:
        seconds = self._limits.stall_timeout or 0.0
        lines, missing = self._who_waits()
        text = f"no progress in a collective for {seconds:g} s, which --stall-timeout allows"
        return Ending("stall", TIMEOUT_CODE, text, lines, tuple(sorted(missing)), with_stacks=True)

    def _who_waits(self) -> tuple[tuple[str, ...], set[int]]:
        """Lines that list which instance waits where for which; and the awaited instances."""
        running = {one.index for one in self._outcome.running()}
        missing = {*self._missing, *self._stopped}
        if self._waiting and not missing:
            missing = running - self._waiting.keys()
            missing |= {one.index for one in self._outcome.instances.values() if one.ended}
        waiting = sorted({*self._waiting} - missing)
        lines = [
            f"{self._name(index)} waits in {self._waiting[index]}{self._line(index)}"
            for index in waiting
        ]
        lines += [f"missing: {self._name(index)}{self._why(index)}" for index in sorted(missing)]
        if self._missing and not waiting:  # by Horovod's words: whoever is not missing is waiting
            where = ", ".join(dict.fromkeys(self._missing.values()))
            lines += [
                f"{self._name(index)} waits in {where}{self._line(index)}"
                for index in sorted(running - missing)
            ]
        if not missing:
            lines.append("all instances wait, and in places that do not belong together")
        return tuple(lines), missing

    def _why(self, index: int) -> str:
        one = self._outcome.instances.get(index)
        if index in self._stopped:
            return ", which is stopped (as by SIGSTOP)"
        if one is not None and one.ended:
            return f", which has ended with exit code {one.code}"
        where = self._missing.get(index, "")
        return (f", which has not submitted {where}" if where else "") + self._line(index)

    def _line(self, index: int) -> str:
        """The instance's line in the user's program, where its stacks are known."""
        from popdist.poprun.supervisor.user_line import line_of_stacks

        one = self._outcome.instances.get(index)
        line = line_of_stacks(one.stacks) if one is not None else ""
        return f", at {line}" if line else ""

    def _remark_early_end(self, now: float) -> None:
        running = self._outcome.running()
        ended = [one for one in self._outcome.instances.values() if one.ended]
        if not ended or not running or self._early_told:
            self._early_since = self._early_since if self._early_told else None
            return
        self._early_since = self._early_since or now
        if now - self._early_since >= self._early_after:
            self._early_told = True
            over = name_instances([one.index for one in ended])
            left = name_instances([one.index for one in running])
            runs, it = ("run", "they wait") if len(running) > 1 else ("runs", "it waits")
            other = "those that ended" if len(ended) > 1 else "the one that ended"
            self._tell(
                f"{over} ended with exit code 0 more than {self._early_after:g} s ago, and {left} "
                f"still {runs}; if {it} for {other} in a collective, {it} for ever"
            )

    def _remark_mute(self, now: float) -> None:
        if self._mute_since is not None and now >= self._mute_since + _GATHER_SECONDS:
            self._mute_since = None
            have = "have" if len(self._mute) > 1 else "has"
            self._tell(
                f"{name_instances(self._mute)} {have} not imported popdist so far, so "
                "--stall-timeout knows only what Horovod says, and no Python stacks can be shown"
            )

    def _lost_host(self, now: float) -> Ending | None:
        overslept = now - self._last_look > self._limits.host_timeout / BEATS + _OVERSLEPT_SECONDS
        self._last_look = now
        if not self._heard:
            return None
        if overslept:  # the launcher was stopped itself, and heard nobody meanwhile
            self._heard = dict.fromkeys(self._heard, now)
            self._first_word = now
            return None
        timeout = self._limits.host_timeout
        members = self._members()
        late = self._first_word + timeout
        heard = {host: self._heard.get(host, late) for host in members}
        # Hosts that mpirun ends because of a lost one become silent after it.
        host = min(heard, key=heard.__getitem__, default="")
        if not host or now - heard[host] < timeout:
            return None
        text = f"host {host} has not been heard of for {timeout:g} s, so the job ends"
        there = f"{name_instances(members[host])} ran there; {ENDED_UNHEARD}"
        return Ending("host", _LOST_HOST_CODE, text, (there,), tuple(members[host]))

    def _members(self) -> dict[str, list[int]]:
        """The instances that have not ended, by host."""
        found: dict[str, list[int]] = {}
        for one in self._instances:
            record = self._outcome.instances.get(one.index)
            if record is None or not record.ended:
                found.setdefault(one.host.name, []).append(one.index)
        return found

    def _name(self, index: int) -> str:
        one = self._outcome.instances.get(index)
        process = f" (PID {one.pid})" if one is not None and one.pid else ""
        return f"instance {index} on {self._instances[index].host.name}{process}"
