"""What a guard tells the launcher about its program, as records."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` adds enums, for 6 ms
import os
from time import monotonic

from popdist.poprun.supervision import frames
from popdist.poprun.supervision.memory import OomEvidence
from popdist.poprun.supervision.processes import process_start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from popdist.poprun.supervision.channel import PipeChannel, StreamChannel


class Reporter:
    """Speaks for a guard; made before the program starts.

    Args:
        channel: The way to the launcher.
    """

    def __init__(self, channel: PipeChannel | StreamChannel) -> None:
        self._channel = channel
        self._evidence = OomEvidence()
        self._began = monotonic()

    def started(self, pid: int) -> None:
        """The program has started.

        Args:
            pid: Its process.
        """
        fields = {"pid": pid, "guard": os.getpid(), "began": process_start(pid)}
        self._channel.record(frames.STARTED, frames.encode_fields(**fields))

    def notes(self, notes: Iterable[Mapping[str, str]]) -> None:
        """Something was noticed.

        Args:
            notes: Fields of each note; ``what`` says what kind it is.
        """
        for note in notes:
            self._channel.record(frames.NOTE, frames.encode_fields(**note))

    def stacks(self, text: str) -> None:
        """The program's Python stacks.

        Args:
            text: What the interpreter wrote; nothing is said where it is empty.
        """
        if text:
            self._channel.record(frames.STACKS, text.encode())

    def ended(
        self,
        pid: int,
        status: int,
        memory: int,
        tail: bytes,
        *,
        lost: str,
        asked: bool,
        speaks: bool,
    ) -> None:
        """The program has ended, and all of its output was sent.

        Args:
            pid: Its process.
            status: Its exit code; negative for the signal that ended it.
            memory: The most memory it had, in bytes.
            tail: The end of its standard error.
            lost: Why the guard ended it, where the launcher or mpirun had gone.
            asked: Whether it had been asked to end.
            speaks: Whether it imports popdist.
        """
        fields = {
            "code": max(status, 0),
            "signal": max(0, -status),
            "lost": lost,
            "asked": int(asked),
            "seconds": f"{monotonic() - self._began:.3f}",
            "memory": memory,
            "oom": self._evidence.about(pid) if -status == signal.SIGKILL else "",
            "speaks": int(speaks),
        }
        self._channel.record(frames.ENDED, frames.encode_fields(**fields) + b"\n\n" + tail)
