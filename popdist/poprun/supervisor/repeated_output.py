"""Shows once what every instance of a job writes: progress bars, and messages of libraries.

A bar is written again and again over itself: its states end with a carriage return, and the last
state with a line feed. Of the instances that show a bar at the same time, the first keeps its own.
Libraries in C++ write remarks and warnings in the forms of glog, Abseil and TensorFlow, many of
them as they are loaded. A message that another instance has written is left out. All other output
stays.
"""

from __future__ import annotations

_OTHERS_SECONDS = 5.0
"""Seconds without a new state after which the bars of another instance are shown."""

_GROWTH = 8
"""Bytes by which the last state of a bar may be longer than the others: numbers grow. What is
longer is a message that begins behind a bar, such as an error."""

_MOST_MESSAGES = 4096
_LEVELS = (b"I", b"W")


class _Bar:
    """The bar of a stream that is not complete."""

    def __init__(self) -> None:
        self.longest = 0
        self.last = b""


class RepeatedOutput:
    """Chooses among the output of instances."""

    def __init__(self) -> None:
        self._owner: int | None = None
        self._owner_at = 0.0
        self._bars: dict[tuple[int, int], _Bar] = {}
        self._authors: dict[bytes, int] = {}

    def feed(self, index: int, stream: int, text: bytes, now: float) -> bytes:
        """The part of an instance's whole lines and states that is shown.

        Args:
            index: The instance.
            stream: Which of its streams has the text.
            text: What it has written.
            now: The time in seconds.
        """
        is_plain = b"\r" not in text and b"] " not in text
        if is_plain and (index, stream) not in self._bars:
            return text
        units = text.splitlines(keepends=True)
        return b"".join([self._shown((index, stream), unit, now) for unit in units])

    def _is_first(self, index: int, message: bytes) -> bool:
        """Whether no other instance has written a message of a library before."""
        if len(self._authors) >= _MOST_MESSAGES:
            return self._authors.get(message, index) == index
        return self._authors.setdefault(message, index) == index

    def _shown(self, source: tuple[int, int], unit: bytes, now: float) -> bytes:
        if unit.endswith(b"\r"):
            bar = self._bars.setdefault(source, _Bar())
            bar.longest, bar.last = max(bar.longest, len(unit)), unit
            return unit if self._owns(source[0], now) else b""
        message = _message(unit)
        if message and not self._is_first(source[0], message):
            return b""
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


def _message(line: bytes) -> bytes:
    """The place and text of a library's remark or warning; empty for any other line.

    The forms are ``2026-11-28 13:30:01.2: I tensorflow/core/util/port.cc:153] text`` and
    ``I1128 13:30:01.2   4711 port.cc:153] text``, each perhaps behind a tag.
    """
    head, mark, text = line.partition(b"] ")
    words = head.split()
    if not mark or len(words) != 4 or b":" not in words[3]:  # noqa: PLR2004 - date, time, level, place
        return b""
    level, digits = words[0][-5:-4], words[0][-4:]
    is_glog = level in _LEVELS and digits.isdigit()
    return words[3] + text if is_glog or words[2] in _LEVELS else b""
