"""The text of a dry run: the origin of each value, and the command."""

from __future__ import annotations

import os
import shlex

from popdist.poprun.options.serialize import provenance
from popdist.poprun.plan.command import Command, needs_file
from popdist.poprun.protocol.guard_argv import plain_words
from popdist.poprun.secrets import hide_assignment, hide_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from popdist.poprun.options.parser import CommandLine

_CONTEXTS = "<folder>/contexts"


def dry_run_text(
    line: CommandLine, command: Command, environ: Mapping[str, str], *, room: int
) -> str:
    """Describes a job that is not started; secrets are hidden.

    ``room`` is the number of bytes that the kernel grants for arguments and environment together.
    The text has comment lines with the origin of each value, the variables, and the command.
    """
    lines = [provenance(line)]
    for name, value in sorted(command.environment.items() - environ.items()):
        shown = hide_assignment(f"{name}={value}").partition("=")[2]
        lines.append(f"{name}={shlex.quote(shown)} \\")
    if not needs_file(command, room):
        return "\n".join([*lines, _quoted(command.arguments)])
    count = len(command.contexts)
    lines += [
        _quoted((*command.head, "--app", _CONTEXTS)),
        f"# {_CONTEXTS} would describe {count} instances; the first and the last of them:",
    ]
    for context in (command.contexts[0], command.contexts[-1]):
        guard = plain_words(context.settings, command.program)
        lines.append(f"# {_quoted((*context.options, *context.start, *guard))}")
    return "\n".join(lines)


def _quoted(words: Sequence[str]) -> str:
    return " ".join(map(_quote, hide_words(words)))


def _quote(word: str) -> str:
    """Quotes a word for a shell; bytes that are not UTF-8 are in bash's ``$'...'`` form."""
    if word.isascii() or word.isprintable():
        return shlex.quote(word)
    characters = (chr(byte) for byte in os.fsencode(word))
    escaped = "".join(
        one if one.isascii() and one.isprintable() and one not in "'\\" else f"\\{ord(one):03o}"
        for one in characters
    )
    return f"$'{escaped}'"
