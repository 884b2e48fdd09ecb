"""What a dry run shows: where values come from, and what would be executed."""

from __future__ import annotations

import shlex

from popdist.poprun.command.provenance import provenance
from popdist.poprun.secrets import hide_assignment, hide_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from popdist.poprun.command.parser import CommandLine
    from popdist.poprun.plan.mpirun import Command


def dry_run_text(line: CommandLine, command: Command, environ: Mapping[str, str]) -> str:
    """Describes a job that is not going to be started.

    Args:
        line: Its command line.
        command: What would be executed.
        environ: The launcher's environment.

    Returns:
        Comment lines with the origin of each value, the variables that would be set, and the
        command; what looks like a secret is hidden.
    """
    lines = [provenance(line)]
    for name, value in sorted(command.environment.items() - environ.items()):
        shown = hide_assignment(f"{name}={value}").partition("=")[2]
        lines.append(f"{name}={shlex.quote(shown)} \\")
    lines.append(shlex.join(hide_words(command.arguments)))
    return "\n".join(lines) + "\n"
