"""Carries what guards say: text to the launcher's streams, facts to the outcome."""

from __future__ import annotations

import os

from popdist.poprun.supervision import frames
from popdist.poprun.supervision.channel import MARK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from popdist.poprun.log import Log
    from popdist.poprun.supervision.outcome import InstanceRecord, Outcome


class Relay:
    """Reads what guards and mpirun say.

    Args:
        outcome: Receives the facts.
        log: For the launcher's messages.
        token: The secret that marks records on mpirun's standard error; None where records come by
            the job's pipe, and what mpirun writes there is mpirun's own.

    Attributes:
        closed: Whether the reader of the launcher's output has gone away.
        started: Instances that have reported their start since this was last emptied.
    """

    def __init__(self, outcome: Outcome, log: Log, token: str | None) -> None:
        self.closed = False
        self.started: list[InstanceRecord] = []
        self._outcome = outcome
        self._log = log
        self._mark = None if token is None else MARK + token.encode()
        self._decoder = frames.Decoder()
        self._held: dict[tuple[int, int], bytes] = {}
        self._pending = b""

    def on_pipe(self, data: bytes) -> None:
        """Takes bytes of the job's pipe."""
        for frame in self._decoder.feed(data):
            self._on_frame(*frame)

    def on_stdout(self, data: bytes) -> None:
        """Takes bytes of mpirun's standard output."""
        self._show(1, data)

    def on_stderr(self, data: bytes) -> None:
        """Takes bytes of mpirun's standard error; none at its end."""
        if self._mark is None:
            # Once a failure is known, mpirun's long abort text says less than our summary.
            known = self._outcome.first_failure is not None or self._outcome.interrupted
            if not known or self._log.verbosity:
                self._show(2, data)
            return
        lines = (self._pending + data).splitlines(keepends=True)
        self._pending = lines.pop() if data and lines and not lines[-1].endswith(b"\n") else b""
        for line in lines:
            text, mark, record = line.partition(self._mark)
            self._show(2, text + (b"\n" if mark and text else b""))
            if mark:
                for frame in frames.Decoder().feed(bytes.fromhex(record.decode())):
                    self._on_frame(*frame)

    def finish(self) -> None:
        """Shows what was cut off in the middle of a long line."""
        for (_, kind), text in self._held.items():
            self._show(1 if kind == frames.OUT_MORE else 2, text)

    def _on_frame(self, index: int, kind: int, payload: bytes) -> None:
        if kind in (frames.OUT_MORE, frames.ERR_MORE):
            self._held[index, kind] = self._held.get((index, kind), b"") + payload
        elif kind == frames.OUT:
            self._show(1, self._held.pop((index, frames.OUT_MORE), b"") + payload)
        elif kind == frames.ERR:
            self._show(2, self._held.pop((index, frames.ERR_MORE), b"") + payload)
        elif kind == frames.STARTED:
            self._on_started(index, frames.decode_fields(payload))
        elif kind == frames.ENDED:
            self._on_ended(index, payload)

    def _on_started(self, index: int, fields: dict[str, str]) -> None:
        one = self._outcome.record(index)
        one.pid, one.guard, one.began = int(fields["pid"]), int(fields["guard"]), fields["began"]
        self.started.append(one)
        self._log.debug(f"instance {index} started (PID {one.pid})")

    def _on_ended(self, index: int, payload: bytes) -> None:
        head, _, tail = payload.partition(b"\n\n")
        fields = frames.decode_fields(head)
        one = self._outcome.record(index)
        one.ended, one.code, one.signal = True, int(fields["code"]), int(fields["signal"])
        one.lost, one.tail = fields["lost"], tail
        self._log.debug(f"instance {index} ended: code {one.code}, signal {one.signal}")
        if one.lost:
            self._outcome.first_lost = self._outcome.first_lost or one
        elif one.failed:
            self._outcome.first_failure = self._outcome.first_failure or one

    def _show(self, fd: int, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(fd, data) :]
        except OSError:  # the supervisor ends the job, as a closed pipe ends a program
            self.closed = True
