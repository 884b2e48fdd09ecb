"""Cuts a program's output into units that may be shown whole: lines, and steps of progress bars."""

from __future__ import annotations

LONGEST = 1 << 20
"""A line without an end is passed on in pieces of this many bytes, so that memory stays bounded."""


class LineCutter:
    """Collects bytes and gives them out in whole units.

    A unit ends with a line feed, or with the carriage return that a progress bar puts between two
    states. Bytes are never decoded, so characters that a read has split come out whole.

    Args:
        tag: What to put in front of every unit.
    """

    def __init__(self, tag: bytes = b"") -> None:
        self._tag = tag
        self._pending = b""
        self._after_return = False

    def feed(self, data: bytes) -> bytes:
        """Takes what was read.

        Args:
            data: The next bytes.

        Returns:
            All units that are complete now, tagged.
        """
        units = (self._pending + data).splitlines(keepends=True)
        complete = not units or units[-1].endswith((b"\n", b"\r")) or len(units[-1]) > LONGEST
        self._pending = b"" if complete else units.pop()
        return b"".join([self._tagged(unit) for unit in units])

    def flush(self) -> bytes:
        """Gives out what is left, although its line has no end.

        Returns:
            The rest, tagged; a line feed is added to a tagged rest, as another tag will follow it.
        """
        rest, self._pending = self._pending, b""
        if not rest:
            return b""
        return self._tagged(rest) + (b"\n" if self._tag else b"")

    @property
    def pending(self) -> bool:
        """Whether a unit has begun and not ended."""
        return bool(self._pending)

    def _tagged(self, unit: bytes) -> bytes:
        # A line feed right after a carriage return belongs to the same line end, split by a read;
        # a lone carriage return is how a progress bar starts.
        bare = unit == b"\r" or (unit == b"\n" and self._after_return)
        self._after_return = unit.endswith(b"\r")
        return unit if bare else self._tag + unit
