"""The event loop of a guard's process: output, ends and signals of one program or of many."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` adds enums, for 5 ms
import os
import select
from time import monotonic

from popdist.poprun.guard.guard import ENDING
from popdist.poprun.protocol.processes import adopt_orphans, hear_of_parents_end
from popdist.poprun.protocol.signals import END_AT_ONCE, KILL_NOW, WAKE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from popdist.poprun.guard.guard import Guard

_NEVER = float("inf")


class Loop:
    """Runs guards in the calling process, which takes over orphans of their programs.

    Args:
        passed: Signals that go to the programs.
        liveness: A descriptor that reports an error when the launcher is gone, or None.
        adopts: Whether processes that a program has detached become children of this process.
        repeats: Whether a program that was asked to end is asked again by the next such signal. The
            launcher asks this process again when a program starts late, while others are ending.

    Attributes:
        guards: The guards whose programs run.
        wake: A descriptor that is readable after each signal.
        is_released: Whether the launcher said that it has all reports.
        is_killed: Whether the launcher wanted all programs killed.
        launcher_lost: Whether the launcher has ended.
    """

    def __init__(
        self, passed: Iterable[int], liveness: int | None, *, adopts: bool, repeats: bool
    ) -> None:
        self.guards: list[Guard] = []
        self.is_released = self.is_killed = self.launcher_lost = False
        self._is_over = False
        self._repeats = repeats
        self._heard = False
        self._orphans = False
        self._actions: dict[int, tuple[Guard | None, Callable[[], bool]]] = {}
        self._poll = select.poll()
        self.wake, wake_end = os.pipe()
        os.set_blocking(wake_end, False)
        os.set_blocking(self.wake, False)
        self.watch(self.wake, self._on_wake_up)
        if liveness is not None:
            self.watch(liveness, self._on_launcher_end, 0)
        hear_of_parents_end(WAKE)
        if adopts:
            adopt_orphans()
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        for number in passed:
            signal.signal(number, self._on_signal)
        signal.signal(KILL_NOW, lambda *_: self._kill())
        signal.signal(WAKE, self._on_wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(END_AT_ONCE, self._on_end_at_once)

    def watch(
        self,
        fd: int,
        action: Callable[[], bool],
        events: int = select.POLLIN,
        guard: Guard | None = None,
    ) -> None:
        """Has an action called on events of a descriptor, until the action returns False."""
        self._actions[fd] = guard, action
        self._poll.register(fd, events)

    def add(self, guard: Guard) -> bool:
        """Starts a guard's program; False where it could not be started."""
        if not guard.start():
            return False
        self.guards.append(guard)
        for fd, (action, events) in guard.actions().items():
            self.watch(fd, action, events, guard)
        if self.is_killed:  # while it started
            guard.kill()
        return True

    def turn(self, latest: float = _NEVER) -> list[Guard]:
        """Waits for events, until ``latest`` at most; returns guards whose programs have ended."""
        due = min((latest, *(guard.due for guard in self.guards)))
        patience = None if due == _NEVER else max(0.0, due - monotonic()) * 1000
        touched = set()
        for fd, _ in self._poll.poll(patience):
            owner, action = self._actions[fd]
            if not action():
                self._poll.unregister(fd)
            touched.add(owner)
        now = monotonic()
        ended = [
            guard
            for guard in self.guards
            if (guard in touched or guard.due <= now or self._heard)
            and guard.check(idle=guard not in touched)
        ]
        self._heard = False
        for guard in ended:
            self._forget(guard)
        self._reap_orphans()
        return ended

    def be_over(self) -> None:
        """States that no program is left to be ended."""
        self._is_over = True

    def _forget(self, guard: Guard) -> None:
        self.guards.remove(guard)
        for fd in [fd for fd, (owner, _) in self._actions.items() if owner is guard]:
            del self._actions[fd]
            try:
                self._poll.unregister(fd)
            except KeyError:  # nothing could follow there
                pass

    def _on_wake_up(self) -> bool:
        os.read(self.wake, 1024)
        self._heard = self._orphans = True
        return True

    def _reap_orphans(self) -> None:
        """Reaps adopted processes that have ended; guards reap their programs themselves."""
        if not self._orphans:
            return
        ours = {guard.pid for guard in self.guards}
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            while ended := os.waitid(os.P_ALL, 0, how):
                if ended.si_pid in ours:  # reaped in the next turn; what comes after it, too
                    return
                os.waitpid(ended.si_pid, 0)
        except ChildProcessError:  # there are no children
            pass
        self._orphans = False

    def _on_launcher_end(self) -> bool:
        self.launcher_lost = True
        for guard in self.guards:
            guard.on_launcher_end()
        return False

    def _on_signal(self, number: int, _frame: object) -> None:
        for guard in self.guards:
            if self._repeats or not (number in ENDING and guard.was_asked):
                guard.on_signal(number)

    def _on_wake(self, _number: int, _frame: object) -> None:
        for guard in self.guards:
            guard.on_wake()

    def _on_end_at_once(self, _number: int, _frame: object) -> None:
        self.is_released = self._is_over
        self._kill()

    def _kill(self) -> None:
        self.is_killed = True
        for guard in self.guards:
            guard.kill()
