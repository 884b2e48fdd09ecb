"""From values back to the words that give them: for another launcher elsewhere."""

from __future__ import annotations

from popdist.poprun.command.options import OPTIONS
from popdist.poprun.command.options.kinds import FLAG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from popdist.poprun.command.parser import CommandLine


def respell(line: CommandLine, without: Collection[str]) -> list[str]:
    """Writes the options that were set, wherever that was, as words.

    Args:
        line: The command line.
        without: Names of options to leave out.

    Returns:
        ``--name=value`` each, without the program.
    """
    return [
        word
        for option in OPTIONS
        if option.name in line.given and option.name not in without and not option.typed_only
        for word in _words(option.name, option.kind is FLAG, line.values[option.name])
    ]


def _words(name: str, is_flag: bool, value: object) -> list[str]:
    if is_flag:
        return [f"--{name}"]
    values = value if isinstance(value, tuple) else (value,)
    return [f"--{name}={spelled(one)}" for one in values]


def spelled(value: object) -> str:
    """How a value is typed.

    Args:
        value: The value of an option.

    Returns:
        A text that the option's kind accepts.
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
