"""Shows the progress bars of one instance where several have one; other output is not changed.

A bar is written again and again over itself: its states end with a carriage return, and the last
state with a line feed. Of the instances that show a bar at the same time, the first keeps its own.
"""

from __future__ import annotations

_OTHERS_SECONDS = 5.0
"""Seconds without a new state after which the bars of another instance are shown."""

_GROWTH = 8
"""Bytes by which the last state of a bar may be longer than the others: numbers grow. What is
longer is a message that begins behind a bar, such as an error."""


class _Bar:
    """The bar of a stream that is not complete."""

    def __init__(self) -> None:
        self.longest = 0
        self.last = b""


class ProgressBars:
    """Chooses among the output of instances."""

    def __init__(self) -> None:
        self._owner: int | None = None
        self._owner_at = 0.0
        self._bars: dict[tuple[int, int], _Bar] = {}

    def feed(self, index: int, stream: int, text: bytes, now: float) -> bytes:
        """What to show of an instance's whole lines and states.

        Args:
            index: The instance.
            stream: Which of its streams has the text.
            text: What it has written.
            now: The time in seconds.
        """
        if b"\r" not in text and (index, stream) not in self._bars:
            return text
        units = text.splitlines(keepends=True)
        return b"".join([self._shown((index, stream), unit, now) for unit in units])

    def _shown(self, source: tuple[int, int], unit: bytes, now: float) -> bytes:
        if unit.endswith(b"\r"):
            bar = self._bars.setdefault(source, _Bar())
            bar.longest, bar.last = max(bar.longest, len(unit)), unit
            return unit if self._owns(source[0], now) else b""
        whole = self._bars.pop(source, None)
        if whole is None or len(unit) > whole.longest + _GROWTH or self._owns(source[0], now):
            return unit
        return whole.last + unit if unit == b"\n" else b""  # the end of a line in two pieces

    def _owns(self, index: int, now: float) -> bool:
        """Whether the bars of an instance are those that are shown."""
        is_free = self._owner is None or now - self._owner_at > _OTHERS_SECONDS
        if is_free or index <= (self._owner or 0):
            self._owner, self._owner_at = index, now
        return self._owner == index
