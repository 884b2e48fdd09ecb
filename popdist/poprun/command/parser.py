"""Command line to values, by the rules of the original launcher.

Written by hand because ``argparse`` refuses ``--mpi-global-args "--tag-output"`` (a value that
looks like an option), which published commands use.
"""

from __future__ import annotations

from popdist.errors import UsageError
from popdist.poprun.command.options import BY_ALIAS, BY_NAME, OPTIONS
from popdist.poprun.command.options.kinds import FLAG
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from popdist.poprun.command.options.option import Option


class CommandLine(Record):
    """What was typed.

    Attributes:
        values: The value of every option, by name; defaults are filled in.
        given: The names of the options that were typed.
        program: The program and its arguments; empty where none was named.
    """

    values: Mapping[str, object]
    given: frozenset[str]
    program: tuple[str, ...]


def parse(arguments: Sequence[str]) -> CommandLine:
    """Reads a command line.

    Options end at the first argument that is neither an option nor an option's value, or after
    ``--``; all that follows belongs to the program.

    Args:
        arguments: The arguments without the launcher's own name.

    Returns:
        The values and the program.

    Raises:
        UsageError: An option is unknown, ambiguous, repeated, without its value, or malformed.
    """
    typed: dict[str, list[object]] = {}
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if word == "--":
            position += 1
            break
        if not word.startswith("-") or word == "-":
            break
        option, text = _split(word)
        position += 1
        if option.kind is FLAG:
            if text is not None:
                raise _malformed(option, text, hint=f"write --{option.name} alone")
            typed.setdefault(option.name, []).append(True)
            continue
        if text is None:
            if position == len(arguments):
                raise UsageError(
                    "PD100",
                    f"--{option.name} needs a value",
                    accepted=option.kind.accepted,
                    hint=f"--{option.name}=VALUE",
                )
            text = arguments[position]
            position += 1
        typed.setdefault(option.name, []).append(_convert(option, text))
    return CommandLine(
        {option.name: _merge(option, typed.get(option.name)) for option in OPTIONS},
        frozenset(typed),
        tuple(arguments[position:]),
    )


def _split(word: str) -> tuple[Option, str | None]:
    """The option that a word names, and the value that is attached to it, if any."""
    name, equals, text = word.partition("=")
    attached = text if equals else None
    if name in BY_ALIAS:
        return BY_ALIAS[name], attached
    if not word.startswith("--"):
        # -Hhost0,host1: a short option with its value attached, as getopt has it.
        option = BY_ALIAS.get(word[:2])
        if option is None or option.kind is FLAG:
            raise _unknown(name)
        return option, word[2:]
    return _by_prefix(name), attached


def _by_prefix(name: str) -> Option:
    wanted = name[2:]
    if wanted in BY_NAME:
        return BY_NAME[wanted]
    matches = [option for option in OPTIONS if wanted and option.name.startswith(wanted)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(
            "PD100",
            f"{name} could be any of several options",
            value=name,
            accepted=", ".join(f"--{option.name}" for option in matches),
            hint="write more of the name",
        )
    raise _unknown(name)


def _unknown(name: str) -> UsageError:
    import difflib

    close = difflib.get_close_matches(name, [f"--{known}" for known in BY_NAME], n=1, cutoff=0.5)
    return UsageError(
        "PD100",
        "there is no such option",
        value=name,
        accepted="the options that poprun --help lists, before the program",
        hint=f"did you mean {close[0]}?" if close else "options of the program go after its name",
    )


def _convert(option: Option, text: str) -> object:
    try:
        return option.kind.convert(text)
    except ValueError:
        raise _malformed(option, text) from None


def _malformed(option: Option, text: str, hint: str | None = None) -> UsageError:
    return UsageError(
        "PD100",
        f"the value of --{option.name} is not accepted",
        value=text,
        accepted=option.kind.accepted,
        hint=hint,
    )


def _merge(option: Option, typed: list[object] | None) -> object:
    if option.repeatable:
        return tuple(typed or ())
    if option.kind is FLAG:
        return len(typed or ())
    if typed is None:
        return option.default
    if len(typed) > 1:
        raise UsageError(
            "PD100",
            f"--{option.name} was given {len(typed)} times",
            value=", ".join(str(value) for value in typed),
            accepted="at most once",
        )
    return typed[0]
