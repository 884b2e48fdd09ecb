"""How a guard reaches the launcher: a pipe of its own on one machine, mpirun's streams elsewhere.

The pipe (a FIFO in the job's private folder) carries whole frames, so lines of different instances
never mix, and it tells the guard at once when the launcher is gone. Where instances run on other
hosts, lines go to the guard's own output for mpirun to carry, and records travel among them on
standard error, marked by a secret of the job.
"""

from __future__ import annotations

import os

from popdist.poprun.supervision import frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MARK = b"\x1e"
"""Starts a record among the lines of standard error."""


class PipeChannel:
    """Frames on the job's pipe.

    Attributes:
        liveness: A descriptor that reports an error when the launcher is gone.
    """

    def __init__(self, index: int, path: str) -> None:
        self._index = index
        self._path = path
        # Without a reader this fails at once instead of waiting for one.
        self._fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        os.set_blocking(self._fd, True)
        self.liveness: int | None = self._fd

    def text(self, units: bytes, *, is_error: bool) -> None:
        """Sends complete units of output."""
        if not units:
            return
        kind, more = (frames.ERR, frames.ERR_MORE) if is_error else (frames.OUT, frames.OUT_MORE)
        for frame in frames.encode_text(self._index, kind, more, units):
            self._write(frame)

    def record(self, kind: int, payload: bytes) -> None:
        """Sends a record of one of the kinds in `frames`."""
        self._write(frames.encode(self._index, kind, payload))

    def long_record(self, kind: int, more: int, payload: bytes) -> None:
        """Sends a record of any length, the parts before its last one under another kind."""
        for frame in frames.encode_text(self._index, kind, more, payload):
            self._write(frame)

    def remove(self) -> str:
        """Removes the pipe, which the launcher no longer can; other guards may be quicker.

        Returns:
            The job's folder where this guard was the first, which then has to remove it, as soon
            as mpirun does not use it any more; else an empty text.
        """
        try:
            os.unlink(self._path)
        except OSError:
            return ""
        return os.path.dirname(self._path)

    def _write(self, frame: bytes) -> None:
        try:
            os.write(self._fd, frame)
        except BrokenPipeError:  # the launcher is gone; `liveness` says so too
            pass


class StreamChannel:
    """Lines on the guard's own output, records on its standard error.

    Attributes:
        liveness: None; the guard watches its parent instead.
    """

    liveness: int | None = None

    def __init__(self, index: int, token: str) -> None:
        self._index = index
        self._token = token.encode()

    def text(self, units: bytes, *, is_error: bool) -> None:
        """Sends complete units of output."""
        _write_all(2 if is_error else 1, units)

    def record(self, kind: int, payload: bytes) -> None:
        """Sends a record of one of the kinds in `frames`."""
        self._write(frames.encode(self._index, kind, payload))

    def long_record(self, kind: int, more: int, payload: bytes) -> None:
        """Sends a record of any length, the parts before its last one under another kind."""
        for frame in frames.encode_text(self._index, kind, more, payload):
            self._write(frame)

    def remove(self) -> str:
        """Removes nothing: mpirun's streams end with mpirun."""
        return ""

    def _write(self, frame: bytes) -> None:
        _write_all(2, MARK + self._token + frame.hex().encode() + b"\n")


def _write_all(fd: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError:  # mpirun is gone; the guard sees it by its parent
        pass


def open_channel(settings: Mapping[str, str]) -> PipeChannel | StreamChannel:
    """Opens the channel that a guard's settings name.

    Args:
        settings: ``index`` and either ``pipe`` (a path) or ``token``.

    Returns:
        The channel.

    Raises:
        OSError: The launcher no longer reads the pipe.
    """
    index = int(settings["index"])
    if "pipe" in settings:
        return PipeChannel(index, settings["pipe"])
    return StreamChannel(index, settings["token"])
