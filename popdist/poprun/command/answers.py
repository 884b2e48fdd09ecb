"""Options that are answered with a text instead of a job."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from popdist.poprun.command.parser import CommandLine


def answer(line: CommandLine) -> str | None:
    """Answers ``--help``, ``--version`` and ``--completion``.

    Args:
        line: The command line.

    Returns:
        The text to print; None where a job was asked for.
    """
    if line.values["help"]:
        from popdist.poprun.command.help import help_text

        return help_text()
    if line.values["version"]:
        from popdist.poprun.command.version import version_text

        return version_text(str(line.values["version-format"]))
    if line.values["completion"]:
        from popdist.poprun.command.completion import completion_script

        return completion_script(str(line.values["completion"]))
    return None
