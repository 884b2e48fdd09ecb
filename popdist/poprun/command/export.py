"""Writes the options of a job to a file that ``--config`` reads."""

from __future__ import annotations

import os

from popdist.errors import UsageError
from popdist.poprun.command.config_file import PROGRAM
from popdist.poprun.command.options import OPTIONS
from popdist.poprun.command.options.kinds import FLAG
from popdist.poprun.secrets import HIDDEN, hide_assignment, hide_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from popdist.poprun.command.options.option import Option
    from popdist.poprun.command.parser import CommandLine

_DELETE = 0x7F


def export_config(line: CommandLine, path: str, *, overwrite: bool) -> None:
    """Writes a configuration file.

    Args:
        line: The command line; what has its default is left out.
        path: Where to write it.
        overwrite: Whether a file there may be replaced.

    Raises:
        UsageError: The file exists or cannot be written, or a value cannot stand in it.
    """
    text = config_text(line)
    target = path if not overwrite else f"{path}.{os.getpid()}.new"
    try:
        with open(target, "x", encoding="utf-8") as file:
            file.write(text)
        if overwrite:
            os.replace(target, path)
    except FileExistsError:
        raise UsageError(
            "PD106",
            "--export-config would replace a file",
            value=path,
            hint="--overwrite-config=yes, or another path",
        ) from None
    except OSError as error:
        raise UsageError(
            "PD106", f"the configuration cannot be written: {error.strerror}", value=path
        ) from None


def config_text(line: CommandLine) -> str:
    """The configuration file of a command line.

    Args:
        line: The command line.

    Returns:
        TOML.

    Raises:
        UsageError: A value cannot stand in such a file.
    """
    lines = [
        f"{option.name} = {_toml(option, line.values[option.name])}"
        for option in OPTIONS
        if option.name in line.given and not option.typed_only and option.name != "config"
    ]
    if line.program:
        if HIDDEN in hide_words(line.program):
            raise _secret(line.program)
        lines.append(f"{PROGRAM} = [{', '.join(map(_quoted, line.program))}]")
    return "\n".join([*lines, *_left_out(line), ""])


def _left_out(line: CommandLine) -> list[str]:
    """Says which values a reader of the file has to provide."""
    texts = line.values["env"]
    return [
        f"# The value of {text.partition('=')[0]} looks like a secret: export it before using this."
        for text in (texts if isinstance(texts, tuple) else ())
        if HIDDEN in hide_assignment(text)
    ]


def _toml(option: Option, value: object) -> str:
    if option.kind is FLAG:
        return "true"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(_quoted(_public(option, text)) for text in value)}]"
    return _quoted(value) if isinstance(value, str) else f"{value:g}"


def _public(option: Option, text: str) -> str:
    """A value without its secret; a variable can be forwarded by its name instead."""
    if option.name == "env":
        return text.partition("=")[0] if HIDDEN in hide_assignment(text) else text
    if HIDDEN in hide_words([text])[0]:
        raise _secret(hide_words([text]))
    return text


def _secret(words: object) -> UsageError:
    shown = hide_words([str(word) for word in words]) if isinstance(words, tuple) else words
    return UsageError(
        "PD106",
        "what looks like a secret is not written to a configuration file",
        value=shown,
        hint="put it into an environment variable and forward that by name: -x NAME",
    )


def _quoted(text: str) -> str:
    shown = ""
    for character in text:
        code = ord(character)
        if 0xD800 <= code <= 0xDFFF:  # noqa: PLR2004 - bytes of a word that are not UTF-8
            raise UsageError("PD106", "a word that is not UTF-8 cannot be written", value=text)
        if character in '"\\':
            shown += f"\\{character}"
        else:
            shown += character if code >= ord(" ") and code != _DELETE else f"\\u{code:04x}"
    return f'"{shown}"'
