"""What a program lets its guard see: its Python stacks, and what it waits for.

The guard of an instance hands the program an anonymous file (a memfd) and names its descriptor in
the environment. The first process that imports popdist there states its number in the file's
header, registers the interpreter's own `faulthandler` for a signal that nothing else uses, and
keeps the header up to date while it waits for other instances. Where the guard asks for it, the
first interpreter does the same as it starts (`show_stacks`), until a process imports popdist. No
error in this module may disturb the program, so a file that is not the guard's is not changed.

Programs that poprun has not started only pay for a lookup in the environment.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

VARIABLE = "POPDIST_STATUS_FD"
"""Names the descriptor; private between a guard and its program, so no part of the contract."""

NAME = "popdist-status"
"""The name of the file, by which it is told from another that has got the same descriptor."""

DUMP_SIGNAL = 63
"""Asks for the stacks. The last but one of Linux's real-time signals, which no library claims."""

WAITING_SIZE = 256
"""Bytes for ``<process> <count> <what it waits for>`` and padding, at the beginning."""

EARLY = "-"
"""In place of the count: the process has not imported popdist so far."""

END_PLACE = 1 << 20
"""Where the program states, as it ends, what it has trained: the length of a text as eight bytes,
and the text. The stacks before it are shorter."""

HEADER_SIZE = 512
"""Bytes before the stacks. Those after `WAITING_SIZE` say how far the program is, as
``<name>=<value>`` with blanks between, and padding."""


class _Page:
    """The header of the guard's file.

    Args:
        fd: Its descriptor.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pid = os.getpid()
        self._count = 0
        self.write("")

    def write(self, where: str) -> None:
        """States what the process waits for; an empty text for no waiting."""
        if os.getpid() != self._pid:  # a forked worker; the header is its parent's
            return
        self._count += 1
        text = f"{self._pid} {self._count} {where}".encode()[:WAITING_SIZE]
        os.pwrite(self._fd, text.ljust(WAITING_SIZE, b"\0"), 0)

    def write_progress(self, text: str) -> None:
        """States the progress of the program."""
        if os.getpid() == self._pid:
            size = HEADER_SIZE - WAITING_SIZE
            os.pwrite(self._fd, text.encode()[:size].ljust(size, b"\0"), WAITING_SIZE)

    def write_end(self, text: bytes) -> None:
        """States what the program has trained."""
        if os.getpid() == self._pid:
            os.pwrite(self._fd, len(text).to_bytes(8, "little") + text, END_PLACE)

    def clear(self) -> None:
        """Clears the statement."""
        if os.getpid() == self._pid:
            os.pwrite(self._fd, bytes(HEADER_SIZE), 0)


_page: _Page | None = None


def register() -> None:
    """Registers this process with its guard, if there is a guard and no earlier process."""
    global _page  # noqa: PLW0603 - one page per process
    fd = _guards_file() if _page is None else None
    if fd is None or _is_taken(fd, early=False):
        return
    _answer(fd)
    _page = _Page(fd)
    tell_progress(phase="importing")


def show_stacks() -> None:
    """Registers this interpreter for requests of stacks until the program imports popdist."""
    fd = _guards_file()
    if fd is not None and not _is_taken(fd):
        _answer(fd)
        os.pwrite(fd, f"{os.getpid()} {EARLY} ".encode().ljust(WAITING_SIZE, b"\0"), 0)


def _answer(fd: int) -> None:
    """Makes this process write its stacks when the guard asks for them."""
    import _signal as signal  # type: ignore[import-not-found]  # `signal` adds enums, for 5 ms
    import faulthandler
    from contextlib import suppress

    # At exit, `faulthandler` restores the previous action, by default the process's end.
    faulthandler.unregister(DUMP_SIGNAL)  # what `show_stacks` has registered
    with suppress(ValueError):  # popdist may be imported by a thread, where Python forbids that
        signal.signal(DUMP_SIGNAL, signal.SIG_IGN)
    faulthandler.register(DUMP_SIGNAL, file=fd, all_threads=True)


def release() -> None:
    """Releases the guard's file for the program that this process starts or becomes."""
    global _page  # noqa: PLW0603 - one page per process
    if _page is not None:
        import faulthandler

        faulthandler.unregister(DUMP_SIGNAL)
        _page.clear()
        _page = None


def is_watched() -> bool:
    """Whether a guard reads how far the program is."""
    return _page is not None


def tell_progress(**facts: float | str | None) -> None:
    """Tells the guard how far the program is; costs nothing where there is no guard.

    Args:
        **facts: ``phase``, a word; ``step`` and ``total``, numbers of steps; ``loss``; ``rate``, in
            samples per second. None for what is not known.
    """
    if _page is not None:
        known = {name: value for name, value in facts.items() if value is not None}
        texts = (
            f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in known.items()
        )
        _page.write_progress(" ".join(texts))


def tell_end(text: str) -> None:
    """Tells the guard what the program has trained; a later text replaces it.

    Args:
        text: One line.
    """
    if _page is not None:
        _page.write_end(text.encode())


def _guards_file() -> int | None:
    """The descriptor of the guard's file; None without a guard."""
    text = os.environ.get(VARIABLE, "")
    try:
        target = os.readlink(f"/proc/self/fd/{int(text)}")  # noqa: PTH115 - pathlib costs milliseconds
    except (OSError, ValueError):
        return None
    return int(text) if target.startswith(f"/memfd:{NAME}") else None


def _is_taken(fd: int, *, early: bool = True) -> bool:
    """Whether another process, which still runs, is in the header.

    Args:
        fd: The descriptor of the guard's file.
        early: Whether a process counts that has not imported popdist.
    """
    first, count, *_ = [*os.pread(fd, WAITING_SIZE, 0).decode(errors="replace").split(" "), ""]
    if not first.isdecimal() or int(first) == os.getpid() or (count == EARLY and not early):
        return False
    try:
        os.kill(int(first), 0)
    except OSError:
        return False
    return True


class waiting:  # noqa: N801 - reads as the statement that it makes
    """Tells the guard that this process waits for other instances, as a context.

    Args:
        what: What it waits in, such as ``popdist.init``.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        if _page is not None:
            _page.write(self._what)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if _page is not None:
            _page.write("")
