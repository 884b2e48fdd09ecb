"""Runs a process that starts a job: shows its output, forwards interrupts, and ends the process."""

from __future__ import annotations

import codecs
import os
import selectors
import signal
import subprocess
import sys
from contextlib import suppress
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TextIO

    Show = Callable[[bytes], object]
    "Takes what a stream says, and an empty text at its end."

_ENOUGH_SECONDS = 15.0
_READ_SIZE = 1 << 16


class Streams:
    """Where a job's output goes.

    Args:
        out: Takes its standard output; None lets it write to this process's own.
        err: Takes its standard error; None as above.
    """

    def __init__(self, out: Show | None, err: Show | None) -> None:
        self.out = out
        self.err = err

    @classmethod
    def of_this_process(cls) -> Streams:
        """To `sys.stdout` and `sys.stderr`, whatever stands for them: a notebook's, a test's."""
        return cls(_show_in(sys.stdout, 1), _show_in(sys.stderr, 2))


def run_process(
    words: Callable[[int], Sequence[str]],
    environ: Mapping[str, str],
    *,
    cwd: str | None,
    streams: Streams,
    limit: float | None = None,
) -> tuple[int, bytes]:
    """Runs a process to its end; returns the exit code and the bytes of its report.

    ``words`` makes the command from a descriptor for the report. After ``limit`` seconds the
    process is ended.

    Raises:
        TimeoutError: The process did not end in time.
        KeyboardInterrupt: This process was interrupted; the job has ended.
    """
    report = bytearray()
    reader, writer = os.pipe()
    try:
        process = subprocess.Popen(
            words(writer),
            env=environ,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if streams.out else None,
            stderr=subprocess.PIPE if streams.err else None,
            pass_fds=[writer],
            start_new_session=True,  # a terminal's Ctrl-C comes here, and is passed on
        )
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    shows: dict[int, Show] = {reader: report.extend}
    for stream, show in ((process.stdout, streams.out), (process.stderr, streams.err)):
        if stream is not None and show is not None:
            shows[stream.fileno()] = show
    try:
        _read_all(process, shows, None if limit is None else monotonic() + limit)
    finally:
        os.close(reader)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    return process.returncode, bytes(report)


def _read_all(
    process: subprocess.Popen[bytes], shows: dict[int, Show], until: float | None
) -> None:
    """Shows the output until the process has ended."""
    try:
        _read(shows, until)
        process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        _read_all(process, shows, until)  # a second interrupt makes poprun less patient
        raise
    except BaseException:  # a time limit, or the error of a signal's handler
        process.terminate()
        with suppress(TimeoutError):
            _read(shows, monotonic() + _ENOUGH_SECONDS)
        process.kill()  # it has ended; where it has not, guards end what is left
        process.wait()
        raise


def _read(shows: dict[int, Show], until: float | None) -> None:
    """Shows the output until all streams have ended."""
    with selectors.DefaultSelector() as selector:
        for fd in shows:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select(until and max(0.0, until - monotonic())):
                data = os.read(key.fd, _READ_SIZE)
                shows[key.fd](data)
                if not data:
                    selector.unregister(key.fd)
                    del shows[key.fd]
            if until and monotonic() >= until:
                raise TimeoutError


def _show_in(stream: TextIO | None, fd: int) -> Show | None:
    """What shows bytes in a stream of this process; None for a terminal, to be handed on.

    A terminal is handed on for the sake of colours and of the status line.
    """
    if stream is None:
        return lambda _: None
    try:
        if stream.fileno() == fd and os.isatty(fd):
            stream.flush()
            return None
    except (OSError, ValueError, AttributeError):  # no descriptor
        pass
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def show(data: bytes) -> None:
        text = decoder.decode(data, final=not data)
        encoding = getattr(stream, "encoding", None) or "utf-8"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()

    return show
