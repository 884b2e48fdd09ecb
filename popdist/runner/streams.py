"""Pickled bytes in pieces, so that large data are neither joined nor copied on their way."""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Buffer


class Stream:
    """A file in memory: written by a pickler, and read once by an unpickler.

    Large parts of a pickle are kept as they are given, without a copy. What was read is freed.

    Args:
        pieces: The content.

    Attributes:
        size: The number of bytes that are left.
    """

    def __init__(self, pieces: Iterable[Buffer] = ()) -> None:
        self.size = 0
        self._pieces: deque[memoryview] = deque()
        self._at = 0
        for piece in pieces:
            self.write(piece)

    def __iter__(self) -> Iterator[memoryview]:
        return iter(self._pieces)

    def write(self, data: Buffer) -> int:
        """Appends bytes, which must not change later."""
        piece = memoryview(data).cast("B")
        if piece.nbytes:
            self._pieces.append(piece)
        self.size += piece.nbytes
        return piece.nbytes

    def readinto(self, target: Buffer) -> int:
        """Fills a buffer with the next bytes; returns how many there were."""
        view = memoryview(target).cast("B")
        filled = 0
        while filled < view.nbytes and self._pieces:
            part = self._pieces[0][self._at :][: view.nbytes - filled]
            view[filled : filled + part.nbytes] = part
            filled += part.nbytes
            self._at += part.nbytes
            if self._at == self._pieces[0].nbytes:
                self._pieces.popleft()
                self._at = 0
        self.size -= filled
        return filled

    def read(self, size: int = -1) -> bytes:
        """The next bytes; all that are left without a size."""
        data = bytearray(self.size if size < 0 else min(size, self.size))
        self.readinto(data)
        return bytes(data)

    def readline(self) -> bytes:
        """The bytes up to a line feed; a pickle has few lines."""
        line = bytearray()
        while self._pieces and not line.endswith(b"\n"):
            line += self.read(1)
        return bytes(line)
