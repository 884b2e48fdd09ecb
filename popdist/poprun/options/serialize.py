"""Writes options as text: a file for ``--config``, words of a command line, and their origins."""

from __future__ import annotations

from popdist.errors import UsageError
from popdist.poprun.options.config_file import PROGRAM
from popdist.poprun.options.table import OPTIONS
from popdist.poprun.options.types import FLAG
from popdist.poprun.secrets import HIDDEN, hide, hide_assignment, hide_words
from popdist.whole_files import write_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from popdist.poprun.options.parser import CommandLine
    from popdist.poprun.options.types import Option

_DELETE = 0x7F


def export_config(line: CommandLine, path: str, *, overwrite: bool) -> None:
    """Writes a configuration file without the options that have their defaults.

    Raises:
        UsageError: The file exists or cannot be written, or a value has no form in the file.
    """
    text = config_text(line)
    try:
        if overwrite:
            write_whole(path, text)
        else:
            with open(path, "x", encoding="utf-8") as file:
                file.write(text)
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
    """The configuration file of a command line, as TOML.

    Raises:
        UsageError: A value has no form in the file.
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
    """The lines about values that a reader of the file has to provide."""
    texts = line.values["env"]
    return [
        f"# The value of {text.partition('=')[0]} looks like a secret: export it before using this."
        for text in (texts if isinstance(texts, tuple) else ())
        if HIDDEN in hide_assignment(text)
    ]


def _toml(option: Option, value: object) -> str:
    if option.kind is FLAG:
        return _quoted(value) if isinstance(value, str) else "true" if value else "false"
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


def respell(line: CommandLine, without: Collection[str]) -> list[str]:
    """The options that were set, from any source, as ``--name=value`` words."""
    return [
        word
        for option in OPTIONS
        if option.name in line.given and option.name not in without and not option.typed_only
        for word in _words(option, line.values[option.name])
    ]


def _words(option: Option, value: object) -> list[str]:
    if option.kind is FLAG and not option.words:
        return [f"--{option.name}"] if value else []
    values = value if isinstance(value, tuple) else (value,)
    return [f"--{option.name}={spelled(one)}" for one in values]


def spelled(value: object) -> str:
    """The text of a value that the option's kind accepts."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def provenance(line: CommandLine) -> str:
    """One comment line per option that was set, with its source; secrets are hidden."""
    rows = [
        (f"--{option.name}{_shown(option, value)}", line.origins[option.name])
        for option in OPTIONS
        if option.name in line.given
        for value in _values(option, line.values[option.name])
    ]
    width = max([len(text) for text, _ in rows if len(text) <= 60], default=0)  # noqa: PLR2004
    lines = [f"# {text:<{width}}  from {origin}" for text, origin in rows]
    return "\n".join([*lines, f"# {'all other options':<{width}}  have their defaults"])


def _values(option: Option, value: object) -> list[object]:
    return list(value) if option.repeatable and isinstance(value, tuple) else [value]


def _shown(option: Option, value: object) -> str:
    if option.kind is FLAG:
        return f"={value}" if isinstance(value, str) else "" if value else "=no"
    text = spelled(value)
    if option.name == "env":
        return f"={hide_assignment(text)}"
    if option.repeatable:
        return f"={hide_words([text])[0]}"
    return f"={hide(text)}"
