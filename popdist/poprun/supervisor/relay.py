"""Relays the guards' output and reports, and passes the launcher's input on to instance 0."""

from __future__ import annotations

import errno
import os
import time

from popdist.poprun.protocol import frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from popdist.poprun.log import Log
    from popdist.poprun.supervisor.outcome import InstanceRecord, Outcome
    from popdist.poprun.supervisor.repeated_output import RepeatedOutput
    from popdist.poprun.supervisor.tracebacks import Tracebacks

_LARGEST_BACKLOG = 64 << 20
_READ_SIZE = 1 << 16
_HELD_SECONDS = 1.0
_START_SECONDS = 5.0
_STDIN = 0
_SIGKILL = 9
_CHATTER = (b"mpirun: Forwarding signal ", b"sh: Warning: setpgid(")
"""What Open MPI says of signals that the launcher has it carry, and of an ssh that is so quick, on
a busy machine, that mpirun finds it running or ended already. Neither means anything for a job."""

_UNREACHABLE = (
    b"MPI processes are unable to reach each other",
    b"ORTE_ERROR_LOG: Unreachable in file",
)
"""Messages of mpirun, or of programs over Open MPI 4: two processes share no transport."""


class Relay:
    """Reads what guards and mpirun say.

    Args:
        outcome: Receives the facts.
        log: For the launcher's messages.
        token: The secret that marks records on mpirun's standard error; None where records come by
            the job's pipe, and what mpirun writes there is mpirun's own.
        on_word: Called with an instance whenever its guard has spoken.
        on_note: Called with an instance and what its guard has noticed.
        before_output: Called before something is shown.
        merges: Whether an error that several instances print is shown once.
        shows_repeats: Whether progress bars and messages of libraries of each instance are shown.
        expected: The instances of a job on one machine. Until they have started, mpirun's own words
            are held for a longer while: if it fails, a known cause says more.
        has_tcp: Whether MPI may use TCP.

    Attributes:
        closed: Whether the reader of the launcher's output has gone away.
        started: Instances that have reported their start since this was last emptied.
    """

    def __init__(
        self,
        outcome: Outcome,
        log: Log,
        token: str | None,
        *,
        on_word: Callable[[int], None],
        on_note: Callable[[int, Mapping[str, str]], None],
        before_output: Callable[[], None],
        merges: bool,
        shows_repeats: bool = True,
        expected: int = 0,
        has_tcp: bool = True,
    ) -> None:
        self.closed = False
        self.started: list[InstanceRecord] = []
        self._outcome = outcome
        self._log = log
        self._token = None if token is None else token.encode()
        self._on_word = on_word
        self._on_note = on_note
        self._before_output = before_output
        self._decoder = frames.Decoder()
        self._assembler = frames.Assembler()
        self._merges = merges
        self._shows_repeats = shows_repeats
        self._repeated: RepeatedOutput | None = None
        self._tracebacks: Tracebacks | None = None
        self._pending = b""
        self._backlog: list[bytes] = []
        self._backlog_size = 0
        self._expected = expected
        self._has_tcp = has_tcp
        self._held: list[tuple[int, bytes]] = []
        self._held_since = self._began = time.monotonic()
        self._text: list[bytes] = []
        self._text_fd = 1

    def on_pipe(self, data: bytes) -> None:
        """Takes bytes of the job's pipe."""
        for frame in self._decoder.feed(data):
            self._on_frame(*frame)
        self._show_text()

    def on_guard(self, data: bytes) -> None:
        """Takes bytes of the pipe of this machine's only guard; empty at the guard's end."""
        self.on_pipe(data)
        if not data:
            for one in self._outcome.running():
                self._on_lost_guard(one)

    def on_stdout(self, data: bytes) -> None:
        """Takes bytes of mpirun's standard output."""
        self._hold(1, data)

    def on_stderr(self, data: bytes) -> None:
        """Takes bytes of mpirun's standard error; empty at its end."""
        if self._token is None:
            self._hold(2, data)
            return
        self._backlog.append(data)
        self._backlog_size += len(data)
        while self._backlog_size > _LARGEST_BACKLOG:
            self.work()

    @property
    def has_work(self) -> bool:
        """Whether there is unprocessed input."""
        return bool(self._backlog)

    def work(self) -> None:
        """Processes a part of the input.

        Reading has priority: mpirun of Open MPI 5 exits after its programs, and discards output
        that was not read.
        """
        data = self._backlog.pop(0)
        self._backlog_size -= len(data)
        lines = (self._pending + data).splitlines(keepends=True)
        self._pending = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        for line in lines:
            self._on_line(line)

    def _hold(self, fd: int, data: bytes) -> None:
        """Takes mpirun's own words, which are shown unless a cause becomes known soon."""
        if data:
            self._look_for_tcp(data)
            self._held_since = self._held_since if self._held else time.monotonic()
            self._held.append((fd, data))

    def _look_for_tcp(self, text: bytes) -> None:
        if not self._has_tcp and any(words in text for words in _UNREACHABLE):
            self._outcome.needs_tcp = True

    def _held_until(self) -> float:
        if self._token is not None:  # causes on other hosts become known late
            return self._held_since + _START_SECONDS
        until = self._held_since + _HELD_SECONDS
        has_started = len(self._outcome.instances) >= self._expected
        return until if has_started else max(until, self._began + _START_SECONDS)

    def _show_held(self) -> None:
        # Once a failure is known, mpirun's long abort text says less than our summary.
        for fd, data in self._held:
            is_explained = self._outcome.is_over or self._outcome.lost_proxy
            if not is_explained or self._log.verbosity:
                self._show(fd, data)
        self._held.clear()

    def finish(self) -> None:
        """Processes the remaining input."""
        while self._backlog:
            self.work()
        self._on_line(self._pending)
        self._show_held()
        for fd, kind in ((1, frames.OUT), (2, frames.ERR)):
            for text in self._assembler.rest(kind):
                self._show(fd, text)
        self._show_tracebacks()

    def wait(self, now: float) -> float | None:
        """Seconds until `show_due` has something to show; None where nothing is held."""
        waits = [self._held_until() - now] if self._held else []
        if self._tracebacks is not None:
            wait = self._tracebacks.wait(now, is_over=self._outcome.is_over)
            waits += [] if wait is None else [wait]
        return min(waits, default=None)

    def show_due(self, now: float) -> None:
        """Shows the errors that were held long enough."""
        if self._held and now >= self._held_until():
            self._show_held()
        if self._tracebacks is not None:
            wait = self._tracebacks.wait(now, is_over=self._outcome.is_over)
            if wait is not None and wait <= 0:
                self._show_tracebacks()

    def _show_tracebacks(self) -> None:
        if self._tracebacks is not None:
            self._show(2, self._tracebacks.release(is_over=self._outcome.is_over))

    def _on_line(self, line: bytes) -> None:
        if self._token is None:
            return
        text, frame = frames.decode_line(line, self._token)
        if any(words in text for words in _CHATTER):
            text = b""
        # Open MPI 5 writes a null byte as it ends.
        self._hold(2, text.replace(b"\0", b"") + (b"\n" if frame and text else b""))
        for one in frames.Decoder().feed(frame):
            self._on_frame(*one)
        self._show_text()

    def _on_frame(self, index: int, kind: int, payload: bytes) -> None:
        self._on_word(index)
        whole = self._assembler.add(index, kind, payload)
        if whole is not None:
            self._on_record(index, kind, whole)

    def _on_record(self, index: int, kind: int, payload: bytes) -> None:
        if kind in (frames.OUT, frames.ERR):
            if not self._shows_repeats:
                payload = self._without_repeats(index, kind, payload)
            if kind == frames.ERR and self._merges:
                payload = self._merge(index, payload)
            if payload:
                self._take_text(1 if kind == frames.OUT else 2, payload)
            return
        self._show_text()  # what was said before
        if kind == frames.STARTED:
            self._on_started(index, frames.decode_fields(payload))
        elif kind == frames.ENDED:
            self._on_ended(index, payload)
        elif kind == frames.NOTE:
            self._on_noted(index, frames.decode_fields(payload))
        elif kind == frames.STACKS:
            self._outcome.record(index).stacks = payload.decode(errors="replace")

    def _without_repeats(self, index: int, kind: int, payload: bytes) -> bytes:
        if self._repeated is None:
            if b"\r" not in payload and b"] " not in payload:  # without the time of an import
                return payload
            from popdist.poprun.supervisor.repeated_output import RepeatedOutput

            self._repeated = RepeatedOutput()
        return self._repeated.feed(index, kind, payload, time.monotonic())

    def _merge(self, index: int, payload: bytes) -> bytes:
        if self._tracebacks is None:
            from popdist.poprun.supervisor.tracebacks import Tracebacks

            self._tracebacks = Tracebacks()
        return self._tracebacks.feed(index, payload, time.monotonic())

    def _on_started(self, index: int, fields: dict[str, str]) -> None:
        one = self._outcome.record(index)
        one.pid, one.guard, one.began = int(fields["pid"]), int(fields["guard"]), fields["began"]
        one.started_at = time.time()
        self.started.append(one)
        self._log.debug(f"instance {index} started (PID {one.pid})")

    def _on_noted(self, index: int, fields: dict[str, str]) -> None:
        if fields["what"] == "progress":
            self._outcome.record(index).progress.take(fields)
            return
        if fields["what"] == frames.REFUSED:
            self._outcome.was_refused = True
            return
        if fields["what"] == "trained":
            self._outcome.record(index).trained = fields["stated"]
            return
        if fields["what"] != "failed":
            self._on_note(index, fields)
            return
        # The rest of its output may take a while, in which failures that follow from it come in.
        one, status = self._outcome.record(index), int(fields["status"])
        one.code, one.signal = max(status, 0), max(-status, 0)
        self._outcome.first_failure = self._outcome.first_failure or one

    def _on_ended(self, index: int, payload: bytes) -> None:
        head, _, tail = payload.partition(b"\n\n")
        fields = frames.decode_fields(head)
        one = self._outcome.record(index)
        one.ended, one.code, one.signal = True, int(fields["code"]), int(fields["signal"])
        one.ended_at, one.seconds = time.time(), float(fields["seconds"])
        one.memory, one.oom = int(fields["memory"]), fields["oom"]
        one.speaks = fields["speaks"] == "1"
        one.lost, one.asked, one.tail = fields["lost"], fields["asked"] == "1", tail
        self._log.debug(f"instance {index} ended: code {one.code}, signal {one.signal}")
        self._look_for_tcp(tail)
        self._outcome.guard_died |= one.lost == frames.GUARD_KILLED
        if one.lost and not one.asked:
            self._outcome.first_lost = self._outcome.first_lost or one
        elif one.failed and not one.lost and (not one.asked or self._is_first_end(one)):
            self._outcome.first_failure = self._outcome.first_failure or one

    def _is_first_end(self, one: InstanceRecord) -> bool:
        """Whether nothing that is known was a reason to ask an instance to end."""
        others = (other for other in self._outcome.instances.values() if other is not one)
        is_local = self._token is None  # else reports of other hosts may be late
        return is_local and not self._outcome.is_over and not any(other.ended for other in others)

    def _on_lost_guard(self, one: InstanceRecord) -> None:
        """Records an instance's end in place of a guard that was killed."""
        one.ended, one.signal, one.lost = True, _SIGKILL, frames.GUARD_KILLED
        one.ended_at = time.time()
        one.seconds = one.ended_at - one.started_at
        self._outcome.guard_died = True
        self._outcome.first_lost = self._outcome.first_lost or one

    def _take_text(self, fd: int, payload: bytes) -> None:
        """Buffers text until text of another stream arrives, to save a call per frame."""
        if fd != self._text_fd:
            self._show_text()
            self._text_fd = fd
        self._text.append(payload)

    def _show_text(self) -> None:
        if self._text:
            self._show(self._text_fd, b"".join(self._text))
            self._text.clear()

    def _show(self, fd: int, data: bytes) -> None:
        if data:
            self._before_output()
        try:
            while data:
                data = data[os.write(fd, data) :]
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
                # A full disk loses output but does not end the job, and may have room again later.
                self._outcome.unwritten += len(data)
            else:  # the supervisor ends the job, as a closed pipe ends a program
                self.closed = True


class Keyboard:
    """Passes the launcher's standard input on to instance 0, its end included, never blocking.

    mpirun could do it, but Open MPI 5 keeps the end of the input to itself.

    Args:
        path: The pipe that instance 0's guard has open before it reports its start.
    """

    def __init__(self, path: str) -> None:
        # Open for reading too, so that the pipe has no end of file before the first write.
        self._fd: int | None = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._pending = b""

    def may_read(self) -> bool:
        """Whether there is room, and a terminal, if any, belongs to this process."""
        if self._fd is None or self._pending:
            return False
        try:
            return not os.isatty(_STDIN) or os.tcgetpgrp(_STDIN) == os.getpgrp()
        except OSError:
            return False

    @property
    def waits_for(self) -> int | None:
        """The descriptor that must become writable before the next read; None for none."""
        return self._fd if self._pending else None

    def read(self) -> None:
        """Reads the available input."""
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
        """Writes pending input, as far as there is room."""
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
