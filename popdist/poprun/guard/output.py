"""One output stream of a program, sent by the guard to the launcher in whole lines."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import BinaryIO

    from popdist.poprun.guard.reporter import PipeChannel, StreamChannel

    Channel = PipeChannel | StreamChannel

_READ_SIZE = 1 << 16
_TAIL_SIZE = 16_000  # a traceback through a framework is long

LONGEST = 1 << 20
"""A line without an end is passed on in pieces of this many bytes, so that memory stays bounded."""


class Stream:
    """One output stream of the program, on its way to the launcher.

    Args:
        fd: Where it is read.
        name: "stdout" or "stderr".
        settings: The guard's settings.
    """

    def __init__(self, fd: int, name: str, settings: Mapping[str, str]) -> None:
        self.fd = fd
        os.set_blocking(fd, False)
        self.is_error = name == "stderr"
        self.shown = settings.get("show") == "1"
        self._recent = b""
        self._cutter = LineCutter(_tag(name, settings))
        self._eager = settings.get("eager") == "1"
        self._problem = ""
        self._copies = [copy for path in _paths(name, settings) if (copy := self._open(path))]

    @property
    def tail(self) -> bytes:
        """The end of what the program wrote to its standard error; empty for its output."""
        return self._recent

    def pumping(self, channel: Channel) -> Callable[[], bool]:
        """`pump` for a channel, as a callback for readable data."""
        return lambda: self.pump(channel)

    def pump(self, channel: Channel) -> bool:
        """Sends the available output; False at the end of the stream."""
        data, more = self._read()
        if not data:
            return more
        if self.is_error:
            self._recent = (self._recent + data)[-_TAIL_SIZE:]
        self._write_copies(data)
        if self.shown:
            channel.text(self._cutter.feed(data), is_error=self.is_error)
        self._complain(channel)
        return more

    def _read(self) -> tuple[bytes, bool]:
        """The available bytes, and whether more can follow.

        A terminal gives out 4 KiB at a time; a frame for each would cost as much as the text.
        """
        pieces: list[bytes] = []
        size = 0
        try:
            while size < _READ_SIZE:
                data = os.read(self.fd, _READ_SIZE - size)
                if not data:
                    return b"".join(pieces), False
                pieces.append(data)
                size += len(data)
        except BlockingIOError:
            pass
        except OSError:  # a terminal without writers answers EIO
            return b"".join(pieces), False
        return b"".join(pieces), True

    @property
    def is_waiting(self) -> bool:
        """Whether an unfinished line, such as a prompt, should be shown soon."""
        return self._eager and self.shown and self._cutter.pending

    def idle(self, channel: Channel) -> None:
        """Shows an unfinished line; no other instance has output that the line could break."""
        if self.is_waiting:
            channel.text(self._cutter.flush(), is_error=self.is_error)

    def close(self, channel: Channel) -> None:
        """Sends the rest."""
        if self.shown:
            channel.text(self._cutter.flush(), is_error=self.is_error)
        self._complain(channel)
        for copy in self._copies:
            copy.close()

    def _open(self, path: str) -> BinaryIO | None:
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return open(path, "wb", buffering=0)
        except OSError as error:
            self._problem = f"no output is kept: {error}"
            return None

    def _write_copies(self, data: bytes) -> None:
        for copy in list(self._copies):
            problem = _write_all(copy, data)
            if problem:  # a full disk must not end the program
                self._problem = f"the output that is kept ends here: {problem}: {copy.name}"
                self._copies.remove(copy)
                copy.close()

    def _complain(self, channel: Channel) -> None:
        if self._problem:
            channel.text(f"poprun: {self._problem}\n".encode(), is_error=True)
            self._problem = ""


def _write_all(file: BinaryIO, data: bytes) -> str:
    """Writes all bytes; returns an error text, empty on success."""
    try:
        while data:
            data = data[file.write(data) :]
    except OSError as error:
        return str(error)
    return ""


def _tag(name: str, settings: Mapping[str, str]) -> bytes:
    """The tag before each line, in Open MPI 4's format."""
    if settings.get("tag") != "1":
        return b""
    text = f"[1,{settings['index']}]<{name}>:"
    color = settings.get("color")
    return (f"\x1b[{color}m{text}\x1b[0m" if color else text).encode()


def _paths(name: str, settings: Mapping[str, str]) -> list[str]:
    """The files that receive the stream."""
    found = []
    if "files" in settings:  # the layout of Open MPI 4
        found.append(f"{settings['files']}/1/rank.{settings['index']}/{name}")
    if "logs" in settings:
        found.append(f"{settings['logs']}/instance.{settings['index']}.{name[3:]}")
    return found


class LineCutter:
    """Collects bytes and gives them out in units that may be shown whole.

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
        """Takes the next bytes, and returns all complete units with tags."""
        if not self._tag:
            return self._feed_untagged(data)
        units = (self._pending + data).splitlines(keepends=True)
        complete = not units or units[-1].endswith((b"\n", b"\r")) or len(units[-1]) > LONGEST
        self._pending = b"" if complete else units.pop()
        return b"".join([self._tagged(unit) for unit in units])

    def _feed_untagged(self, data: bytes) -> bytes:
        """`feed` without splitting into units, which is faster for large output."""
        buffer = self._pending + data if self._pending else data
        end = max(buffer.rfind(b"\n"), buffer.rfind(b"\r")) + 1
        if not end and len(buffer) > LONGEST:
            end = len(buffer)
        self._pending = buffer[end:]
        return buffer[:end]

    def flush(self) -> bytes:
        """Returns the unfinished rest; a tagged rest gets a line feed, as another tag follows."""
        rest, self._pending = self._pending, b""
        if not rest:
            return b""
        return self._tagged(rest) + (b"\n" if self._tag else b"")

    @property
    def pending(self) -> bool:
        """Whether a unit is unfinished."""
        return bool(self._pending)

    def _tagged(self, unit: bytes) -> bytes:
        # A line feed right after a carriage return belongs to the same line end, split by a read;
        # a lone carriage return is how a progress bar starts.
        bare = unit == b"\r" or (unit == b"\n" and self._after_return)
        self._after_return = unit.endswith(b"\r")
        return unit if bare else self._tag + unit
