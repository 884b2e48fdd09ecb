"""One option of the launcher."""

from __future__ import annotations

from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from popdist.poprun.command.options.kinds import Kind

PREFIX = "POPRUN_"
"""Begins the names of environment variables that set options."""


class Option(Record):
    """One option of the launcher.

    Attributes:
        name: The long name without its dashes.
        kind: How its text becomes a value.
        help: What it does, one line.
        group: The heading it stands under.
        default: The value without the option.
        shown_default: The default in words, where the value does not say it.
        aliases: Other spellings with their dashes: one-letter names, names of other launchers.
        repeatable: Whether it may be given several times; its value is then a tuple.
        typed_only: Whether it means something on a command line only, and neither in a file nor
            in the environment.
        excludes: The name of an option that it cannot stand beside.
        ipu_only: Whether it is about IPUs, their links or their server, and so without effect on a
            host.
        since: The SDK that introduced it, or "popdist" for ours.
    """

    name: str
    kind: Kind
    help: str
    group: str
    default: object = None
    shown_default: str = ""
    aliases: tuple[str, ...] = ()
    repeatable: bool = False
    typed_only: bool = False
    excludes: str = ""
    ipu_only: bool = False
    since: str = "1.4"

    @property
    def variable(self) -> str:
        """The environment variable that sets it; empty where there is none."""
        return "" if self.typed_only else f"{PREFIX}{self.name.upper().replace('-', '_')}"
