"""A place that sets options: the command line, the environment, or a configuration file."""

from __future__ import annotations

from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from popdist.poprun.command.words import Given


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
        """What a value of an option comes from, in words."""
        return self.names.get(option, self.name)
