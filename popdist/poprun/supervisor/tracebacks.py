"""Shows an error that several instances print alike once, with the instances in front: [0-3]."""

from __future__ import annotations

from popdist.poprun.protocol.guard_argv import format_list

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_STARTS = (
    b"Traceback (most recent call last)",
    b"  + Exception Group Traceback (most recent call last)",
    b'  File "',  # a program with a mistake in its syntax
    b"Fatal Python error: ",
    b"Current thread 0x",
    b"Thread 0x",
    b"poprun: cannot start ",
)
_CALL = b'  File "'
_INSIDE = b"python: can't open file ", b"python3: can't open file "
_TAG_ENDS = (b">:", b">:\x1b[0m")
_LONGEST_SECONDS = 1.0
_QUIET_SECONDS = 0.25
_LARGEST = 1 << 16


class _Held:
    """What an instance has written to its standard error since the beginning of an error."""

    def __init__(self, text: bytes, tag: bytes, now: float) -> None:
        self.text = text
        self.tag = tag
        self.began = self.last = now

    def untagged(self) -> bytes:
        """The text without tags."""
        lines = self.text.splitlines(keepends=True)
        return b"".join(line.removeprefix(self.tag) for line in lines)

    def parts(self, texts: Iterable[bytes]) -> tuple[bytes, bytes]:
        """The stack with its last line of code, and what follows; both without tags.

        A program that was killed while it printed has printed the beginning of one of the texts.
        """
        text = self.untagged()
        text = max((one for one in texts if one.startswith(text)), key=len, default=text)
        lines = text.splitlines(keepends=True)
        indented = [line.startswith(b" ") for line in lines]
        # Lines of a message may be indented, too, as those of this project's own errors are.
        calls = [at for at, line in enumerate(lines) if line.startswith(_CALL)]
        message = (
            indented.index(False, calls[-1]) if calls and not all(indented[calls[-1] :]) else 0
        )
        end = message or len(lines) - [*reversed(indented), True].index(True)
        return b"".join(lines[:end]), b"".join(lines[end:])


class Tracebacks:
    """Holds errors back for a moment, until it is known which instances print the same.

    An error is shown a quarter of a second after its last line. Once an instance has failed, the
    others are about to print theirs, or to end: then an error is shown a second after its first
    line, or at the end of the job.
    """

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}
        self._shown: dict[tuple[bytes, bytes], int] = {}

    def feed(self, index: int, text: bytes, now: float) -> bytes:
        """Takes whole lines of an instance's standard error; returns those to show at once."""
        held = self._held.get(index)
        if held is not None:
            held.text += text
            held.last = now
            if len(held.text) > _LARGEST:
                held.began = 0.0  # is due
            return b""
        start, tag = _start(text)
        if start < 0:
            return text
        self._held[index] = _Held(text[start:], tag, now)
        return text[:start]

    def wait(self, now: float, *, is_over: bool) -> float | None:
        """Seconds until held errors are due; None where none are held."""
        if not self._held:
            return None
        due = min(held.began for held in self._held.values()) + _LONGEST_SECONDS
        if not is_over:
            due = min(due, max(held.last for held in self._held.values()) + _QUIET_SECONDS)
        return due - now

    def release(self, *, is_over: bool) -> bytes:
        """All held errors, one copy of each, marked with their instances.

        Instances whose stacks are equal and whose messages differ share the stack. An error that
        was shown before is not repeated once the job is over.
        """
        stacks: dict[bytes, dict[bytes, list[int]]] = {}
        tags: dict[int, bytes] = {}
        texts = {held.untagged() for held in self._held.values()} if is_over else set()
        for index, held in sorted(self._held.items()):
            stack, message = held.parts(texts)
            tags[index] = held.tag
            stacks.setdefault(stack, {}).setdefault(message, []).append(index)
        self._held.clear()
        lines: list[bytes] = []
        for stack, messages in stacks.items():
            if is_over:
                for message in [one for one in messages if (stack, one) in self._shown]:
                    first = self._shown[stack, message]
                    same = b"(the same error as that of instance %d above)\n" % first
                    indices = messages.pop(message)
                    lines += _marked(indices, tags[indices[0]], same)
            if not messages:
                continue
            together = sorted(index for indices in messages.values() for index in indices)
            lines += _marked(together, tags[together[0]], stack)
            for message, indices in messages.items():
                lines += _marked(indices, tags[indices[0]], message)
                self._shown.setdefault((stack, message), indices[0])
        return b"".join(lines)


def _start(text: bytes) -> tuple[int, bytes]:
    """Where the line that begins an error starts, and its tag; -1 without such a line."""
    found = -1, b""
    for words in (*_STARTS, *_INSIDE):
        at = text.find(words)
        while at >= 0:
            line = text.rfind(b"\n", 0, at) + 1
            tag = _tag(text[line:at])
            if len(tag) == at - line or words in _INSIDE:
                if found[0] < 0 or line < found[0]:
                    found = line, tag
                break
            at = text.find(words, at + 1)
    return found


def _tag(start: bytes) -> bytes:
    """The tag at the start of a line."""
    ends = (start.rfind(end) + len(end) for end in _TAG_ENDS if end in start)
    return start[: max(ends, default=0)]


def _marked(indices: list[int], tag: bytes, text: bytes) -> list[bytes]:
    """The lines of a text with the instances in front; a tag names them in its own form."""
    spans = format_list(indices).encode()
    first = b"[1,%d]" % indices[0]
    mark = tag.replace(first, b"[1,%s]" % spans) if tag else b"[%s] " % spans
    return [mark + line + b"\n" for line in text.splitlines()]
