"""The launcher's own messages, on standard error."""

from __future__ import annotations

import os
import sys
import time

from popdist.errors import LaunchError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Log:
    """Writes messages in the published form, ``HH:MM:SS.mmm PID POPRUN [I] text``.

    Args:
        verbosity: 0 for warnings only, 1 for what is done, 2 for everything.

    Attributes:
        before: Called before each message, to clear what must not mix with it.
    """

    def __init__(self, verbosity: int = 0) -> None:
        self.verbosity = verbosity
        self.before: Callable[[], None] = lambda: None

    def info(self, text: str) -> None:
        """A message that ``-v`` shows."""
        if self.verbosity >= 1:
            self._write("I", text)

    def debug(self, text: str) -> None:
        """A message that ``-vv`` shows."""
        if self.verbosity > 1:
            self._write("D", text)

    def remark(self, text: str) -> None:
        """A message that is always shown."""
        self.before()
        say(f"poprun: {text}")

    def _write(self, level: str, text: str) -> None:
        now = time.time()
        clock = time.strftime("%H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1000):03d}"
        self.before()
        say(f"{clock} {os.getpid()} POPRUN [{level}] {text}")


def open_standard_streams() -> None:
    """Opens those of the three standard streams that are closed, on nothing.

    Otherwise the next file or pipe would get such a number and pass for the stream, and Python has
    None in its place.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:  # noqa: PERF203 - three of them
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this
            setattr(sys, name, os.fdopen(fd, "r" if fd == 0 else "w", errors="backslashreplace"))


def show(text: str) -> None:
    """Writes an answer to standard output, whatever its encoding; a reader may have gone away.

    Raises:
        LaunchError: It cannot be written, as to a disk that is full.
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # What is left in the buffer would be written, and fail again, when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise LaunchError("PD110", f"standard output cannot be written: {error.strerror}") from None


def say(text: str) -> None:
    """Writes a message to standard error; a reader that has gone away is no reason to fail."""
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except OSError:
        pass
