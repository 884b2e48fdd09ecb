"""mpirun's command: its form on a command line, and its form in a file for large jobs. Pure."""

from __future__ import annotations

import os

from popdist.errors import LaunchError
from popdist.poprun.guard_words import packed_variables, packed_word, plain_words
from popdist.poprun.neighbours.adopt import SET
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# What may stand in a file of contexts, whatever Open MPI reads it; words are cut at blanks.
_HARMLESS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=,+@%-^")
_LONGEST_LINE = 1020
"""Open MPI 5 ends without a word at a line of 1 KiB, and Open MPI 4 cuts one of 16 KiB into two."""

_POINTER = 8
_LONGEST_WORD = 1 << 17
"""Linux starts nothing with a longer word (32 pages), however much room there is for all."""


class Context(Record):
    """One application context: one instance.

    Attributes:
        options: Options for mpirun.
        start: What starts the guard.
        settings: How the guard is to behave.
    """

    options: tuple[str, ...]
    start: tuple[str, ...]
    settings: tuple[str, ...]


class Command(Record):
    """What is executed.

    Attributes:
        head: mpirun's path and its global options.
        contexts: One for each instance; none where they stand in a file.
        program: The program and its arguments.
        environment: The whole environment of mpirun.
    """

    head: tuple[str, ...]
    contexts: tuple[Context, ...]
    program: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def arguments(self) -> tuple[str, ...]:
        """The path of mpirun and all of its arguments."""
        words = list(self.head)
        for index, context in enumerate(self.contexts):
            if index:
                words.append(":")
            words += (*context.options, *context.start)
            words += plain_words(context.settings, self.program)
        return tuple(words)

    @property
    def size(self) -> int:
        """Bytes that the kernel needs for the arguments."""
        program = sum(len(os.fsencode(word)) + _POINTER + 1 for word in self.program)
        return sum(
            program
            + sum(len(word) + _POINTER + 1 for word in (*one.options, *one.start, *one.settings))
            for one in self.contexts
        )


def needs_file(command: Command, room: int) -> bool:
    """Whether a command is too long for a command line.

    Args:
        command: The command.
        room: Bytes that the kernel grants for arguments and environment together.

    Returns:
        True where it would take more than a quarter of the room.
    """
    return command.size > room // 4


def check_lengths(command: Command, room: int) -> None:
    """Checks that the kernel can start the command.

    Args:
        command: The command.
        room: Bytes that the kernel grants for arguments and environment together.

    Raises:
        LaunchError: A word, a variable, or all of them together are too long.
    """
    words = [*command.arguments, *(f"{k}={v}" for k, v in command.environment.items())]
    sizes = [len(os.fsencode(word)) + 1 for word in words]
    if max(sizes) > _LONGEST_WORD:
        longest = words[sizes.index(max(sizes))]
        raise LaunchError(
            "PD105",
            "an argument or a variable is longer than the kernel accepts",
            value=f"{longest[:60]}... ({max(sizes)} bytes)",
            accepted=f"at most {_LONGEST_WORD} bytes each",
            hint="write it to a file, and name that",
        )
    total = sum(sizes) + _POINTER * len(sizes)
    if total > room:
        raise LaunchError(
            "PD105",
            "arguments and environment together are longer than the kernel accepts",
            value=f"{total} bytes",
            accepted=f"at most {room} bytes",
            hint="ulimit -s 65536, or a smaller environment",
        )


def into_file(command: Command, path: str) -> tuple[Command, str]:
    """Moves the contexts of a command to a file.

    Args:
        command: The command.
        path: Where the file is going to be.

    Returns:
        The command that names the file, and the file's content.

    Raises:
        LaunchError: A word cannot stand in such a file.
    """
    settled = [_settle(context) for context in command.contexts]
    shared = set(settled[0][1]).intersection(*(settings for _, settings in settled[1:]))
    variables = packed_variables(sorted(shared), command.program)
    forwarded = tuple(word for name in variables for word in ("-x", name))
    lines = []
    for context, (options, settings) in zip(command.contexts, settled, strict=True):
        words = (*options, *forwarded, *context.start)
        own = packed_word(word for word in settings if word not in shared)
        line = " ".join((*words, own))
        if not all(map(_is_harmless, words)) or len(line) > _LONGEST_LINE:
            raise _refused(words)
        lines.append(line)
    environment = {**command.environment, **variables}
    return (
        Command((*command.head, "--app", path), (), (), environment),
        "\n".join([*lines, ""]),
    )


def _settle(context: Context) -> tuple[list[str], list[str]]:
    """Makes settings of the variables that have a value, which a file could not hold or not all."""
    options: list[str] = []
    settings = list(context.settings)
    for word in context.options:
        if options and options[-1] == "-x" and "=" in word:
            options.pop()
            settings.append(SET + word)
        else:
            options.append(word)
    return options, settings


def _is_harmless(word: str) -> bool:
    return bool(word) and _HARMLESS.issuperset(word)


def _refused(words: tuple[str, ...]) -> LaunchError:
    strange = [word for word in words if not _is_harmless(word)]
    return LaunchError(
        "PD105",
        "so many instances are described to mpirun in a file, in which this word cannot stand",
        value=strange[0] if strange else " ".join(words)[:200],
        accepted="words without blanks, quotes and '#', and few of them",
        hint="set variables with -x NAME=VALUE, which takes any value",
    )
