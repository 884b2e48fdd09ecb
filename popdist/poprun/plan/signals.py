"""The signals that poprun passes on to programs, by name."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` adds enums, for 5 ms

from popdist.errors import UsageError
from popdist.poprun.protocol.signals import END_AT_ONCE, END_SOFTLY
from popdist.program_status import DUMP_SIGNAL

EVERYWHERE = (signal.SIGUSR1, signal.SIGUSR2)
"""The signals that mpirun passes on to other hosts."""

_OURS = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE),
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGTSTP, signal.SIGCONT),
    *(signal.SIGTTIN, signal.SIGTTOU, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE),
    *(signal.SIGILL, signal.SIGTRAP, END_SOFTLY, END_AT_ONCE, DUMP_SIGNAL),
)


def parse_signals(text: str, *, local: bool) -> tuple[int, ...]:
    """The signal numbers of ``--forward-signals``; ``local`` is for jobs on this machine only.

    Raises:
        UsageError: A signal is unknown, or cannot be passed on.
    """
    if text.strip().lower() == "none":
        return ()
    found: list[int] = []
    for word in text.split(","):
        number = _number(word.strip())
        if number is None or number in _OURS:
            raise UsageError(
                "PD100",
                "--forward-signals names a signal that cannot be passed on",
                value=word.strip(),
                accepted="USR1, USR2, WINCH, URG, RTMIN and other signals that end nothing by "
                "themselves, or none; INT, TERM and HUP end the job and always reach it",
            )
        if not local and number not in EVERYWHERE:
            raise UsageError(
                "PD101",
                "--forward-signals names a signal that mpirun does not carry to other hosts",
                value=word.strip(),
                accepted="USR1 and USR2 where instances run on other hosts",
            )
        found.append(number)
    return tuple(dict.fromkeys(found))


def _number(word: str) -> int | None:
    if word.isascii() and word.isdecimal():
        return int(word) if int(word) in signal.valid_signals() else None
    name = word.upper()
    number = getattr(signal, name if name.startswith("SIG") else f"SIG{name}", None)
    return number if isinstance(number, int) and number in signal.valid_signals() else None
