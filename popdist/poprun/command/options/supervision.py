"""Options about how a job may end."""

from __future__ import annotations

from popdist.poprun.command.options.kinds import INDEX, SECONDS, TEXT
from popdist.poprun.command.options.option import Option

_GROUP = "Supervision"

OPTIONS: tuple[Option, ...] = (
    Option(
        "timeout",
        SECONDS,
        "End the job after this time, with exit code 124",
        _GROUP,
        shown_default="none",
        since="popdist",
    ),
    Option(
        "stall-timeout",
        SECONDS,
        "End the job when no instance has made progress in a collective for this time",
        _GROUP,
        shown_default="none",
        since="popdist",
    ),
    Option(
        "max-restarts",
        INDEX,
        "How often a failed job is started again, from the program's own checkpoint",
        _GROUP,
        default=0,
        since="popdist",
    ),
    Option(
        "grace-period",
        SECONDS,
        "The time between asking a program to end and killing it",
        _GROUP,
        default=5.0,
        shown_default="5",
        since="popdist",
    ),
    Option(
        "forward-signals",
        TEXT,
        "Signals that poprun passes on to every instance, separated by commas",
        _GROUP,
        default="USR1,USR2",
        since="popdist",
    ),
    Option(
        "host-timeout",
        SECONDS,
        "End a job over several hosts when one of them has been silent for this time",
        _GROUP,
        default=30.0,
        shown_default="30",
        since="popdist",
    ),
)
