"""How a guard reaches the launcher: a pipe of its own on one machine, mpirun's streams elsewhere.

The pipe (a FIFO in the job's private folder) carries whole frames, so lines of different instances
never mix, and it tells the guard at once when the launcher is gone. Where instances run on other
hosts, frames travel as lines of a fixed length on standard error, marked by a secret of the job.
"""

from __future__ import annotations

import os

from popdist.poprun.supervision import frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


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
        if units:
            self.record(frames.ERR if is_error else frames.OUT, units)

    def record(self, kind: int, payload: bytes) -> None:
        """Sends a record of one of the kinds in `frames`, of any length."""
        try:
            for frame in frames.encode_all(self._index, kind, payload):
                os.write(self._fd, frame)
        except BrokenPipeError:  # the launcher is gone; `liveness` says so too
            pass

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


class StreamChannel:
    """Frames as lines on the guard's standard error.

    Attributes:
        liveness: None; the guard watches its parent instead.
    """

    liveness: int | None = None

    def __init__(self, index: int, token: str) -> None:
        self._index = index
        self._token = token.encode()
        self._room = frames.line_room(self._token)

    def text(self, units: bytes, *, is_error: bool) -> None:
        """Sends complete units of output."""
        if units:
            self.record(frames.ERR if is_error else frames.OUT, units)

    def record(self, kind: int, payload: bytes) -> None:
        """Sends a record of one of the kinds in `frames`, of any length."""
        try:
            for frame in frames.encode_all(self._index, kind, payload, self._room):
                os.write(2, frames.encode_line(frame, self._token))
        except OSError:  # mpirun is gone; the guard sees it by its parent
            pass

    def remove(self) -> str:
        """Removes nothing: mpirun's streams end with mpirun."""
        return ""


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
