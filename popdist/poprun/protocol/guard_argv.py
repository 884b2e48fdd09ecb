"""What a guard is started with, words and variables: written by the launcher, read by the guard.

On mpirun's command line the words stand as they are. A file of application contexts knows neither
blanks nor quotes, and long lines break it; there, what differs between instances stands in one
packed word, and what is the same for all, the program too, travels in the environment.
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


def stand_in(program: Sequence[str]) -> str:
    """A word for a lone colon, which mpirun would take for the start of another program.

    Args:
        program: The program and its arguments.

    Returns:
        A word that is not among them.
    """
    word = "<colon>"
    while word in program:
        word = f"<{word}>"
    return word


def plain_words(settings: Iterable[str], program: Sequence[str]) -> list[str]:
    """The words for a command line.

    Args:
        settings: ``name=value`` each.
        program: The program and its arguments.

    Returns:
        The words.
    """
    if ":" not in program:
        return [*settings, "--", *program]
    colon = stand_in(program)
    replaced = (colon if word == ":" else word for word in program)
    return [*settings, f"colon={colon}", "--", *replaced]


def packed_word(settings: Iterable[str]) -> str:
    """The settings as one word of harmless characters.

    Args:
        settings: ``name=value`` each.

    Returns:
        The word.
    """
    return _PACKED + _pack(settings)


def packed_variables(shared: Sequence[str], program: Sequence[str]) -> dict[str, str]:
    """What is the same for all instances, as variables of the environment.

    Args:
        shared: Settings, ``name=value`` each.
        program: The program and its arguments.

    Returns:
        Names, in order, with values of harmless characters.
    """
    return {
        f"{prefix}{at // _CHUNK}": text[at : at + _CHUNK]
        for prefix, text in ((_SHARED, _pack(shared)), (_PROGRAM, _pack(program)))
        for at in range(0, len(text), _CHUNK)
    }


def read_words(
    arguments: Sequence[str], environ: MutableMapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Reads what a guard was started with.

    Args:
        arguments: Its command line.
        environ: Its environment, from which what was packed is taken out.

    Returns:
        The settings, and the program with its arguments.
    """
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
    """Ends each word with a null byte, and writes what is not harmless as %xx."""
    data = b"".join(os.fsencode(word) + b"\0" for word in words)
    return "".join(chr(byte) if byte in _HARMLESS else f"%{byte:02x}" for byte in data)


def _unpack(text: str) -> list[str]:
    first, *rest = text.encode().split(b"%")
    data = first + b"".join(bytes([int(part[:2], 16)]) + part[2:] for part in rest)
    return [os.fsdecode(word) for word in data.split(b"\0")[:-1]]
