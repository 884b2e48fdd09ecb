"""Says where the values of a job's options come from."""

from __future__ import annotations

from popdist.poprun.command.options import OPTIONS
from popdist.poprun.command.options.kinds import FLAG
from popdist.poprun.command.respell import spelled
from popdist.poprun.secrets import hide, hide_assignment, hide_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from popdist.poprun.command.options.option import Option
    from popdist.poprun.command.parser import CommandLine


def provenance(line: CommandLine) -> str:
    """Lists the options that were set, and what set them.

    Args:
        line: The command line.

    Returns:
        One comment line per value, with what looks like a secret hidden.
    """
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
        return ""
    text = spelled(value)
    if option.name == "env":
        return f"={hide_assignment(text)}"
    if option.repeatable:
        return f"={hide_words([text])[0]}"
    return f"={hide(text)}"
