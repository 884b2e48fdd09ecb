"""Passes the launcher's standard input on to instance 0, its end included."""

from __future__ import annotations

import os

_READ_SIZE = 1 << 16
_STDIN = 0


class Keyboard:
    """Reads the launcher's standard input and writes it to a pipe, never blocking.

    mpirun could do it, but Open MPI 5 keeps the end of the input to itself.

    Args:
        path: The pipe that instance 0's guard has open before it reports its start.
    """

    def __init__(self, path: str) -> None:
        # Open for reading too, so that there is no end before there is a beginning.
        self._fd: int | None = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._pending = b""

    def may_read(self) -> bool:
        """Whether there is room, and the terminal, if it is one, belongs to this process."""
        if self._fd is None or self._pending:
            return False
        try:
            return not os.isatty(_STDIN) or os.tcgetpgrp(_STDIN) == os.getpgrp()
        except OSError:
            return False

    @property
    def waits_for(self) -> int | None:
        """The descriptor that has to become writable before more is read; None for none."""
        return self._fd if self._pending else None

    def read(self) -> None:
        """Takes what can be read now."""
        try:
            data = os.read(_STDIN, _READ_SIZE)
        except BlockingIOError:
            return
        except OSError:  # closed, or the terminal has gone
            data = b""
        if data:
            self._pending = data
            self.write()
        else:
            self.close()

    def write(self) -> None:
        """Passes on what is pending, as far as there is room."""
        if self._fd is None:
            return
        try:
            self._pending = self._pending[os.write(self._fd, self._pending) :]
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Ends the program's input."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
