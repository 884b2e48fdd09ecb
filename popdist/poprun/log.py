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
        before: Called before each message, to clear the status line.
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
    """Opens closed standard streams on the null device.

    Otherwise the next opened file would get the number of a standard stream, and Python has None in
    the stream's place.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:  # noqa: PERF203 - three of them
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this
            setattr(sys, name, os.fdopen(fd, "r" if fd == 0 else "w", errors="backslashreplace"))


def show(text: str) -> None:
    """Writes an answer to standard output, in any encoding; a closed reader is not an error.

    Raises:
        LaunchError: The write failed, as on a full disk.
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would write the buffer's rest at exit, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise LaunchError("PD110", f"standard output cannot be written: {error.strerror}") from None


def say(text: str) -> None:
    """Writes a message to standard error; a closed reader is not an error."""
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except OSError:
        pass
