"""How far a build is: read from the compiler's output, shown on a terminal or line by line.

The time that is left is not forecast: the steps that take longest come last, and a number that
keeps growing is worse than none.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from typing import TextIO

_NINJA = re.compile(r"^\[(\d+)/(\d+)\] (.*)$")
_MAKE = re.compile(r"^\[\s*(\d+)%\] (.*)$")
_SOURCE = re.compile(r"([\w.+-]+\.(?:cc|cpp|cu|c))\.o$")
_PLAIN_EVERY_S = 15.0
_LIVE_EVERY_S = 0.5


@dataclass(frozen=True)
class Progress:
    """A state of the build.

    Attributes:
        phase: What is going on, in words.
        done: Share of the compilation, from 0 to 1; None before it starts.
        steps: Finished steps and all steps, where known, such as ``"31/146"``.
        doing: The file that was reached, where known.
    """

    phase: str = "preparing"
    done: float | None = None
    steps: str = ""
    doing: str = ""


def advance(state: Progress, line: str) -> Progress:
    """The state after one more line of output.

    Args:
        state: The state before.
        line: A line of CMake's, Ninja's, make's or setuptools' output.

    Returns:
        The state after.
    """
    if match := _NINJA.match(line):
        step, steps = int(match.group(1)), int(match.group(2))
        share = step / max(1, steps)
        return Progress("compiling", share, f"{step}/{steps}", _file(match.group(3)))
    if match := _MAKE.match(line):
        return Progress("compiling", int(match.group(1)) / 100, "", _file(match.group(2)))
    if state.phase == "preparing" and line.startswith("-- "):
        return replace(state, phase="configuring")
    if line.startswith(("creating", "adding '")) and state.done == 1:
        return replace(state, phase="packing")
    return state


def clock(seconds: float) -> str:
    """Minutes and seconds.

    Args:
        seconds: A duration.

    Returns:
        Such as ``"1:05"``.
    """
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def describe(state: Progress, elapsed: float) -> str:
    """One line that says how far the build is.

    Args:
        state: The state.
        elapsed: Seconds since the start.

    Returns:
        The line, without a line end.
    """
    parts = [state.phase]
    if state.done is not None:
        parts.append(f"{state.done:4.0%}" + (f" ({state.steps})" if state.steps else ""))
    parts.append(f"{clock(elapsed)} elapsed")
    if state.doing:
        parts.append(state.doing)
    return "  ".join(parts)


class Display:
    """Shows the progress: one live line on a terminal, a plain line now and then elsewhere.

    Args:
        stream: Where to.
        live: Whether the stream is a terminal.
    """

    def __init__(self, stream: TextIO, *, live: bool) -> None:
        self._stream = stream
        self._live = live
        self._next = 0.0 if live else _PLAIN_EVERY_S

    def update(self, state: Progress, elapsed: float) -> None:
        """Shows the state, unless it was shown just before.

        Args:
            state: The state.
            elapsed: Seconds since the start.
        """
        if elapsed < self._next:
            return
        self._next = elapsed + (_LIVE_EVERY_S if self._live else _PLAIN_EVERY_S)
        text = describe(state, elapsed)
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write("\r\x1b[K" + text[:width])
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def finish(self) -> None:
        """Removes the live line."""
        if self._live:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def _file(step: str) -> str:
    match = _SOURCE.search(step)
    return match.group(1) if match else ""
