"""Notices, beside a program, that it has waited for other instances for too long.

Three things are looked at, none of which needs a guess: what popdist in the program states about
its own waiting (`popdist.witness`), what Horovod's stall inspector says on standard error, and
whether the process was stopped.
"""

from __future__ import annotations

from time import monotonic

from popdist.poprun.supervision.stacks import Witness, process_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_HOROVODS_WORDS = b"Missing ranks:"
_MOST_OFTEN = 1.0
_STOPPED = ("stopped", "")


class StallWatch:
    """Looks at one program.

    Args:
        seconds: How long waiting may take; 0 to look at nothing.
        pid: The program's process.
        witness: What the program states.
    """

    def __init__(self, seconds: float, pid: int, witness: Witness) -> None:
        self._seconds = seconds
        self._pid = pid
        self._witness = witness
        self._position = ("", "")
        self._since = monotonic()
        self._told = False
        self._heard = b""
        self._mute_until: float | None = monotonic() + seconds

    @property
    def interval(self) -> float | None:
        """Seconds between two looks; None for no looks."""
        return min(_MOST_OFTEN, self._seconds / 4) if self._seconds else None

    def look(self) -> Iterator[dict[str, str]]:
        """Looks at the program.

        Yields:
            What has become different: that it ``waits`` or is ``stopped`` for too long, and
            afterwards that it ``moves`` again; once, that it has said nothing and is ``mute``.
        """
        if not self._seconds:
            return
        speaker, count, where = self._witness.position()
        if self._mute_until is not None and (speaker or monotonic() >= self._mute_until):
            self._mute_until = None
            if not speaker:
                yield {"what": "mute"}
        stopped = any(process_state(pid) in ("T", "t") for pid in (self._pid, speaker) if pid)
        position = _STOPPED if stopped else (count, where)
        if position != self._position:
            self._position, self._since = position, monotonic()
            if self._told:
                self._told = False
                yield {"what": "moves"}
        elif (stopped or where) and not self._told and self._waited >= self._seconds:
            self._told = True
            yield {"what": "stopped" if stopped else "waits", "where": where}

    @property
    def _waited(self) -> float:
        return monotonic() - self._since

    def hear(self, tail: bytes) -> Iterator[dict[str, str]]:
        """Listens to the program's standard error for Horovod's stall inspector.

        Args:
            tail: The last that was said, which may begin in the middle of anything.

        Yields:
            The ranks that it misses, and in which tensors, once for each time it says so.
        """
        if not self._seconds:
            return
        _, words, after = tail.rpartition(_HOROVODS_WORDS)
        missing = after.split(b"\n")[1:-1]  # whole lines only
        lines = [line for line in missing if line.partition(b":")[0].strip().isdigit()]
        if words and lines and b"\n".join(lines) != self._heard:
            self._heard = b"\n".join(lines)
            found = [line.decode(errors="replace").partition(":") for line in lines]
            yield {
                "what": "horovod",
                "missing": ",".join(rank.strip() for rank, _, _ in found),
                "where": found[0][2].strip(" []"),
            }
