"""The launcher's options, each declared once.

Parser, help, documentation, completion, configuration files and environment variables are made from
these tables.
"""

from __future__ import annotations

from popdist.poprun.command.options import (
    general,
    hosts,
    job,
    mpi,
    output,
    partitions,
    supervision,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from popdist.poprun.command.options.option import Option

OPTIONS: tuple[Option, ...] = (
    *general.OPTIONS,
    *job.OPTIONS,
    *hosts.OPTIONS,
    *mpi.OPTIONS,
    *partitions.OPTIONS,
    *supervision.OPTIONS,
    *output.OPTIONS,
)
"""Every option, in the order of the help text."""

BY_NAME = {option.name: option for option in OPTIONS}
BY_ALIAS = {alias: option for option in OPTIONS for alias in option.aliases}
