"""One output stream of a program on its way from the guard to the launcher."""

from __future__ import annotations

import os

from popdist.poprun.supervision.lines import LineCutter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import BinaryIO

    from popdist.poprun.supervision.channel import PipeChannel, StreamChannel

    Channel = PipeChannel | StreamChannel

_READ_SIZE = 1 << 16
_TAIL_SIZE = 3000


class Stream:
    """One output stream of the program, on its way to the launcher."""

    def __init__(self, fd: int, name: str, settings: Mapping[str, str]) -> None:
        index = settings["index"]
        tag = f"[1,{index}]<{name}>:" if settings.get("tag") == "1" else ""
        self.fd = fd
        self.is_error = name == "stderr"
        self.shown = settings.get("show") == "1"
        self.tail = b""
        self._cutter = LineCutter(tag.encode())
        self._eager = settings.get("eager") == "1"
        self._copy = _open_copy(settings.get("files"), index, name)

    def pumping(self, channel: Channel) -> Callable[[], bool]:
        """`pump` for a channel, to be called when there is something to read."""
        return lambda: self.pump(channel)

    def pump(self, channel: Channel) -> bool:
        """Passes on what can be read now; False at the end of the stream."""
        try:
            data = os.read(self.fd, _READ_SIZE)
        except OSError:  # a terminal without writers answers EIO
            data = b""
        if not data:
            return False
        self.tail = (self.tail + data)[-_TAIL_SIZE:]
        if self._copy is not None:
            self._write_copy(data)
        if self.shown:
            channel.text(self._cutter.feed(data), is_error=self.is_error)
        return True

    @property
    def is_waiting(self) -> bool:
        """Whether a line that has not ended, such as a prompt, should be shown before long."""
        return self._eager and self.shown and self._cutter.pending

    def idle(self, channel: Channel) -> None:
        """Shows such a line; no other instance is there whose lines it could break."""
        if self.is_waiting:
            channel.text(self._cutter.flush(), is_error=self.is_error)

    def close(self, channel: Channel) -> None:
        """Passes on the rest."""
        if self.shown:
            channel.text(self._cutter.flush(), is_error=self.is_error)
        if self._copy is not None:
            self._copy.close()

    def _write_copy(self, data: bytes) -> None:
        assert self._copy is not None  # noqa: S101 - checked by the caller
        try:
            self._copy.write(data)
        except OSError as error:  # a full disk must not end the program
            self._copy.close()
            self._copy = None
            os.write(2, f"poprun: output files end here: {error}\n".encode())


def _open_copy(folder: str | None, index: str, name: str) -> BinaryIO | None:
    if not folder:
        return None
    place = f"{folder}/1/rank.{index}"  # the layout of Open MPI 4
    os.makedirs(place, exist_ok=True)
    return open(f"{place}/{name}", "wb", buffering=0)
