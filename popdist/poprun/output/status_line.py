"""The status line of a job, shown on standard error while there is no output, and the colours.

The line is never part of a line of output, and is cleared before output is shown.
"""

from __future__ import annotations

import os
import sys
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from popdist.poprun.supervisor.outcome import Outcome


_QUIET_SECONDS = 2.0
_EVERY_SECONDS = 1.0
_WITHOUT_TERMINAL_SECONDS = 60.0
_CLEAR = "\r\x1b[K"


class Status:
    """The status line of a job.

    Args:
        choice: The value of ``--status``: "auto" shows the line on a terminal only, "always" also
            elsewhere, as a separate line once a minute.
        num_instances: Instances of the job.
        num_hosts: Hosts of the instances.
        restart: How often the job was started before.
    """

    def __init__(
        self, choice: str, num_instances: int, num_hosts: int = 1, restart: int = 0
    ) -> None:
        self._is_terminal = os.isatty(2) and os.environ.get("TERM") != "dumb"
        self._is_on = choice == "always" or (choice == "auto" and self._is_terminal)
        self._every = _EVERY_SECONDS if self._is_terminal else _WITHOUT_TERMINAL_SECONDS
        self._num_instances = num_instances
        self._hosts = f" on {num_hosts} hosts" if num_hosts > 1 else ""
        self._restart = f", restart {restart}" if restart else ""
        self._began = self._last_output = monotonic()
        self._next = self._began + (_QUIET_SECONDS if self._is_terminal else self._every)
        self._is_shown = False
        self._steps = 0

    def clear(self) -> None:
        """Clears the line before output."""
        if not self._is_on:
            return
        self._last_output = monotonic()
        if self._is_terminal:
            self._next = self._last_output + _QUIET_SECONDS
        if self._is_shown:
            self._is_shown = False
            _write(_CLEAR)

    def wait(self, now: float) -> float | None:
        """Seconds until the line is due; None where the line is off."""
        return max(0.001, self._next - now) if self._is_on else None

    def show(self, outcome: Outcome, now: float) -> None:
        """Shows the line when it is due; ``now`` is in seconds of the monotonic clock."""
        if not self._is_on or now < self._next:
            return
        self._next = now + self._every
        text = self.text(outcome, now)
        if self._is_terminal:
            try:
                columns = os.get_terminal_size(2).columns or len(text) + 1
            except OSError:  # the terminal has gone
                self._is_on = False
                return
            self._is_shown = True
            _write(f"{_CLEAR}{text[: columns - 1]}")
        else:
            _write(f"{text}\n")

    def text(self, outcome: Outcome, now: float) -> str:
        """The text of the line."""
        steps = sum(one.progress.step or 0 for one in outcome.instances.values())
        if steps != self._steps:  # a program that reports steps is not quiet
            self._steps, self._last_output = steps, now
        running = len(outcome.running())
        ended = sum(one.ended for one in outcome.instances.values())
        started = running + ended
        if started < self._num_instances:
            state = f"{started} of {self._num_instances} instances have started"
        else:
            state = f"{running} of {self._num_instances} instances run{self._hosts}"
        if outcome.is_over:
            state = f"ending, {state}"
        state = ", ".join([state, *_progress(outcome)])
        quiet = _clock(now - self._last_output)
        return f"poprun: {_clock(now - self._began)} {state}, quiet for {quiet}{self._restart}"


def _progress(outcome: Outcome) -> list[str]:
    """The reported progress of the running instances; the slowest instance's step counts."""
    running = [one for one in outcome.running() if one.progress.phase]
    if not running:
        return []
    known = [one for one in running if one.progress.step is not None]
    if not known:
        phases = sorted({one.progress.phase.replace("_", " ") for one in running})
        return [] if phases == ["running"] else [" and ".join(phases)]
    slowest = min(known, key=lambda one: one.progress.step or 0)
    furthest = max(one.progress.step or 0 for one in known)
    at = slowest.progress
    of = f" of {at.total}" if at.total else ""
    found = [f"step {at.step}{of}"]
    if furthest != at.step:
        found[0] += f" (instance {slowest.index} is the slowest, others are at {furthest})"
    losses = [one.progress.loss for one in known if one.progress.loss is not None]
    if losses:
        found.append(f"loss {sum(losses) / len(losses):.4g}")
    rates = [one.progress.samples_per_second for one in known]
    if total := sum(rate for rate in rates if rate is not None):
        found.append(f"{total:.3g} samples/s")
    return found


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _write(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        pass


# Colours.

RED, PLAIN = "\x1b[31m", "\x1b[0m"


def wants_color(choice: str, environ: Mapping[str, str], fd: int) -> bool:
    """Whether to colour the output on descriptor ``fd``, for a value of ``--color``.

    With "auto", a ``NO_COLOR`` that is not empty turns colours off (https://no-color.org), and so
    does ``TERM=dumb``.
    """
    if choice != "auto":
        return choice == "always"
    return not environ.get("NO_COLOR") and environ.get("TERM") != "dumb" and os.isatty(fd)


def painted(text: str, color: str, *, wanted: bool) -> str:
    """The text in a colour, or unchanged."""
    return f"{color}{text}{PLAIN}" if wanted else text
