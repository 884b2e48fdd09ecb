"""Options about the size of the job."""

from __future__ import annotations

from popdist.poprun.command.options.kinds import BOOLEAN, COUNT, DIRECTORY, FLAG, INSTANCES
from popdist.poprun.command.options.option import Option

_GROUP = "Job"

OPTIONS: tuple[Option, ...] = (
    Option(
        "num-instances",
        INSTANCES,
        "The number of instances (processes)",
        _GROUP,
        shown_default="one per host",
        aliases=("-np", "-n"),
    ),
    Option(
        "num-replicas",
        COUNT,
        "The total number of replicas",
        _GROUP,
        shown_default="one per instance",
    ),
    Option("ipus-per-replica", COUNT, "The number of devices per replica", _GROUP, default=1),
    Option(
        "num-ilds",
        COUNT,
        "The number of link domains, over which instances are divided evenly",
        _GROUP,
        default=1,
    ),
    Option(
        "offline-mode",
        BOOLEAN,
        "Run without requiring or attaching to any devices",
        _GROUP,
        default=False,
        since="2.0",
    ),
    Option("executable-cache-path", DIRECTORY, "A directory for compiled programs", _GROUP),
    Option(
        "sdk-names",
        FLAG,
        "Let the program import popart, poptorch, horovod.popart and tensorflow.python.ipu",
        _GROUP,
        since="popdist",
    ),
)
