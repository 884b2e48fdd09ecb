"""The words and variables that a guard is started with: written by the launcher, read by the guard.

On mpirun's command line the words are unchanged. A file of application contexts allows neither
blanks nor quotes nor long lines. There, one packed word has the settings of an instance, and the
environment has the common settings and the program.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, MutableMapping, Sequence

STANDARD = frozenset(
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "TF_CONFIG"}
)
"""Variables of other launchers that every program gets, unless the user sets them."""

CLUSTER = "POPRUN_TF_WORKERS"
"""The variable that carries the workers' addresses of ``TF_CONFIG``."""

FRONT = "POPRUN_FRONT"
"""The variable that tells a front the job's folder; see `popdist.poprun.guard.host`."""

JOB = "_POPRUN_JOB"
"""The variable by which the processes of a job are known where their parents were killed."""

PRIVATE = "POPRUN_SET_"
"""Begins the names under which the user's variables travel: <NAME> for all instances, and
<index>_<NAME> for one alone."""

SET = "set."
"""Begins settings that carry a variable for this instance: set.<NAME>=<value>."""

_PACKED = "packed="
_PROGRAM = "POPRUN_PROGRAM_"
_SHARED = "POPRUN_SHARED_"
_HARMLESS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=,+@-^")
_CHUNK = 100_000  # the kernel takes 128 KiB for one variable


class Fronts:
    """The pipes between the fronts of a job on one machine and their guard.

    Args:
        folder: The job's folder.
        count: The number of instances.

    Attributes:
        folder: The job's folder.
        calls: Where fronts report, as ``<process> START <rank>`` and ``<process> <signal>``.
        codes: Where the front of each rank reads the exit code.
    """

    def __init__(self, folder: str, count: int) -> None:
        self.folder = folder
        self.calls = _new_pipe(f"{folder}/calls")
        self.codes = [_new_pipe(f"{folder}/code.{rank}") for rank in range(count)]

    def close(self) -> None:
        """Closes the pipes here."""
        for fd in (self.calls, *self.codes):
            os.close(fd)


def _new_pipe(path: str) -> int:
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR)  # no end of file, whoever opens it and closes it again


def parse_list(text: str) -> list[int]:
    """Numbers of a list in the form of settings and ``/sys``: ``0-3,8``; an empty text has none."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if first.isdecimal() and (last.isdecimal() or not dash):
            numbers += range(int(first), int(last if dash else first) + 1)
    return numbers


def format_list(numbers: Iterable[int]) -> str:
    """Numbers in the same form, such as ``0-3,8``, which `parse_list` reads back."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def stand_in(program: Sequence[str]) -> str:
    """A word that is not in ``program``, in place of a lone colon, which mpirun would interpret."""
    word = "<colon>"
    while word in program:
        word = f"<{word}>"
    return word


def plain_words(settings: Iterable[str], program: Sequence[str]) -> list[str]:
    """The words for a command line; settings are ``name=value`` each."""
    if ":" not in program:
        return [*settings, "--", *program]
    colon = stand_in(program)
    replaced = (colon if word == ":" else word for word in program)
    return [*settings, f"colon={colon}", "--", *replaced]


def packed_word(settings: Iterable[str]) -> str:
    """The settings as one word of harmless characters."""
    return _PACKED + _pack(settings)


def packed_variables(shared: Sequence[str], program: Sequence[str]) -> dict[str, str]:
    """Environment variables with the settings that all instances share, and the program."""
    return {
        f"{prefix}{at // _CHUNK}": text[at : at + _CHUNK]
        for prefix, text in ((_SHARED, _pack(shared)), (_PROGRAM, _pack(program)))
        for at in range(0, len(text), _CHUNK)
    }


def read_words(
    arguments: Sequence[str], environ: MutableMapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """The settings and the program of a guard; packed variables are removed from ``environ``."""
    if arguments[0].startswith(_PACKED):
        settings = [*_take(_SHARED, environ), *_unpack(arguments[0][len(_PACKED) :])]
        return dict(word.split("=", 1) for word in settings), _take(_PROGRAM, environ)
    end = arguments.index("--")
    plain = dict(word.split("=", 1) for word in arguments[:end])
    colon = plain.get("colon")
    return plain, [":" if word == colon else word for word in arguments[end + 1 :]]


def _take(prefix: str, environ: MutableMapping[str, str]) -> list[str]:
    text = ""
    while (name := f"{prefix}{len(text) // _CHUNK}") in environ:
        text += environ.pop(name)
    return _unpack(text)


def _pack(words: Iterable[str]) -> str:
    """Ends each word with a null byte, and writes special characters as %xx."""
    data = b"".join(os.fsencode(word) + b"\0" for word in words)
    return "".join(chr(byte) if byte in _HARMLESS else f"%{byte:02x}" for byte in data)


def _unpack(text: str) -> list[str]:
    first, *rest = text.encode().split(b"%")
    data = first + b"".join(bytes([int(part[:2], 16)]) + part[2:] for part in rest)
    return [os.fsdecode(word) for word in data.split(b"\0")[:-1]]
