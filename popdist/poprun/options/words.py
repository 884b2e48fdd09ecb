"""The words of a command line to values, by the rules of the original launcher.

Written by hand because ``argparse`` refuses ``--mpi-global-args "--tag-output"`` (a value that
looks like an option), which published commands use. `other_launchers` answers options of others.
"""

from __future__ import annotations

import sys

from popdist.errors import UsageError
from popdist.poprun.options.table import BY_ALIAS, BY_NAME, OPTIONS
from popdist.poprun.options.types import BOOLEAN, FLAG
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from popdist.poprun.options.types import Option

    Given = dict[str, list[object]]
    "The values that were given for an option, by its name."

_NEAR = 0.8  # a slip of the pen; words that merely look alike mean other things
MODULE = ("-m", "--module")
"""Runs a module with this Python, as ``python -m`` does; the rest of the words are its own."""


class Source(Record):
    """One place that sets options.

    Attributes:
        name: What it is, in words.
        given: The values it gives.
        names: What sets an option there, where that is not the source itself.
    """

    name: str
    given: Given
    names: Mapping[str, str] = {}

    def origin(self, option: str) -> str:
        """The source of an option's value, in words."""
        return self.names.get(option, self.name)


def read_words(arguments: Sequence[str]) -> tuple[Given, tuple[str, ...]]:
    """The typed values, and the program with its arguments.

    Options end at the first word that is neither an option nor an option's value, or after ``--``.
    The following words belong to the program.

    Raises:
        UsageError: An option is unknown, ambiguous, without its value, or malformed.
    """
    typed: Given = {}
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if word == "--":
            position += 1
            break
        if word in MODULE:
            return typed, _module(arguments[position:])
        if not word.startswith("-") or word == "-":
            break
        option, text = _split(word)
        position += 1
        if option.kind is FLAG:
            following = arguments[position] if position < len(arguments) else None
            if text is None and option.words and following is not None and option.takes(following):
                text = following
                position += 1
            typed.setdefault(option.name, []).append(_flag(option, text))
            continue
        if text is None and option.kind is BOOLEAN and _stands_alone(option, arguments[position:]):
            text = "yes"
        if text is None:
            text = _following(option, arguments[position:])
            position += 1
        typed.setdefault(option.name, []).append(_convert(option, text))
    return typed, tuple(arguments[position:])


def _following(option: Option, words: Sequence[str]) -> str:
    """The value that stands behind an option.

    Raises:
        UsageError: There is none, or it names an option.
    """
    if not words:
        raise UsageError(
            "PD100",
            f"--{option.name} needs a value",
            accepted=option.kind.accepted,
            hint=f"--{option.name}=VALUE",
        )
    if not option.takes_options and _names_option(words[0]):
        raise UsageError(
            "PD100",
            f"--{option.name} needs a value, and another option follows",
            value=words[0],
            accepted=option.kind.accepted,
            hint=f"--{option.name}=VALUE; --{option.name}={words[0]} if that is the value",
        )
    return words[0]


def _stands_alone(option: Option, following: Sequence[str]) -> bool:
    """Whether a Boolean option has no value, as those of other launchers.

    Another option follows then, or a program that is found: a slip in a value is no program.
    """
    if not following or (following[0].startswith("-") and following[0] != "-"):
        return True
    if option.takes(following[0]):
        return False
    from shutil import which

    return which(following[0]) is not None


def _flag(option: Option, text: str | None) -> object:
    """The value of a flag: true, or that of the word behind it where it may have one."""
    if text is None:
        return True
    if not option.words:
        raise _malformed(option, text, hint=f"write --{option.name} alone")
    return _convert(option, text)


def _module(words: Sequence[str]) -> tuple[str, ...]:
    """The program for ``-m package.module args``, which ends the options as it does Python's."""
    if len(words) == 1:
        raise UsageError(
            "PD100",
            f"{words[0]} needs the name of a module",
            accepted="a module that this Python can import, and then its arguments",
            hint=f"{words[0]} package.module",
        )
    return (sys.executable, "-m", *words[1:])


def _names_option(text: str) -> bool:
    """Whether a word names an option of the launcher, or ends the options."""
    name = text.partition("=")[0]
    if text == "--" or name in BY_ALIAS or name in MODULE:
        return True
    wanted = name[2:]
    return (
        name.startswith("--")
        and bool(wanted)
        and any(option.name.startswith(wanted) for option in OPTIONS)
    )


def _split(word: str) -> tuple[Option, str | None]:
    """The option that a word names, and the value that is attached to it, if any."""
    name, equals, text = word.partition("=")
    attached = text if equals else None
    if name in BY_ALIAS:
        return BY_ALIAS[name], attached
    if not word.startswith("--"):
        return _short(word, name)
    return _by_prefix(name), attached


def _short(word: str, name: str) -> tuple[Option, str]:
    """A short option with its value attached, as in getopt: -np2, -Hhost0,host1."""
    from popdist.poprun.options.other_launchers import instead_of

    if name[1:] not in BY_NAME and instead_of(name) is None:
        for letters in sorted(BY_ALIAS, key=len, reverse=True):
            if word.startswith(letters) and BY_ALIAS[letters].kind is not FLAG:
                return BY_ALIAS[letters], word[len(letters) :]
    raise _unknown(name)


def _by_prefix(name: str) -> Option:
    wanted = name[2:]
    if wanted in BY_NAME:
        return BY_NAME[wanted]
    matches = [option for option in OPTIONS if wanted and option.name.startswith(wanted)]
    if not matches:
        raise _unknown(name)
    from popdist.poprun.options.other_launchers import instead_of

    answer = instead_of(name)
    if len(matches) == 1 and answer is None:
        return matches[0]
    names = ", ".join(f"--{option.name}" for option in matches)
    raise UsageError(
        "PD100",
        f"{name} could be any of several options"
        if len(matches) > 1
        else f"{name} is not taken for {names}, as other launchers have an option of that name",
        value=name,
        accepted=names,
        hint=answer or "write more of the name",
    )


def _unknown(name: str) -> UsageError:
    from popdist.nearest import did_you_mean
    from popdist.poprun.options.other_launchers import instead_of

    # -N2 has its value attached.
    short = name[:2] if not name.startswith("--") and name[2:].isdecimal() else name
    return UsageError(
        "PD100",
        "the option is unknown",
        value=name,
        accepted="the options that poprun --help lists, before the program",
        hint=instead_of(name)
        or instead_of(short)
        or (f"did you mean {name[1:]}?" if name[1:] in BY_ALIAS else None)
        or did_you_mean(name, _with_like_words(name), cutoff=_NEAR)
        or "options of the program go after its name",
    )


def _with_like_words(name: str) -> list[str]:
    """The options whose words are like a name's, one by one: ``ilds`` is not ``ipus``."""
    from popdist.nearest import did_you_mean

    words = name.strip("-").replace("_", "-").split("-")
    return [
        f"--{known}"
        for known in BY_NAME
        if len(known.split("-")) != len(words)
        or all(did_you_mean(word, [own]) for word, own in zip(words, known.split("-"), strict=True))
    ]


def _convert(option: Option, text: str) -> object:
    try:
        return option.convert(text)
    except ValueError:
        # Only a program that this machine has may follow at once.
        hint = f"--{option.name} yes, and then the program" if option.kind is BOOLEAN else None
        raise _malformed(option, text, hint) from None


def _malformed(option: Option, text: str, hint: str | None = None) -> UsageError:
    return UsageError(
        "PD100",
        f"the value of --{option.name} is not accepted",
        value=text,
        accepted=option.accepted,
        hint=hint,
    )
