"""Options about partitions of devices."""

from __future__ import annotations

from popdist.poprun.command.options.kinds import BOOLEAN, COUNT, NAME, PORT, SECONDS, TEXT
from popdist.poprun.command.options.option import Option

_GROUP = "Partitions"

OPTIONS: tuple[Option, ...] = (
    Option(
        "vipu-server-host",
        TEXT,
        "The host of the V-IPU server; this machine's own device pool is the only one served",
        _GROUP,
        default="localhost",
    ),
    Option(
        "vipu-server-port",
        PORT,
        "The port number of the V-IPU server",
        _GROUP,
        default=8090,
        ipu_only=True,
    ),
    Option(
        "vipu-server-timeout",
        SECONDS,
        "How long to wait for devices of a partition",
        _GROUP,
        default=10.0,
        shown_default="10",
        since="2.0",
    ),
    Option("vipu-partition", NAME, "Create or use this partition", _GROUP),
    Option(
        "vipu-partition-attempts",
        COUNT,
        "How often a partition that is not ready is tried",
        _GROUP,
        default=1,
        since="3.0",
    ),
    Option(
        "vipu-allocation",
        NAME,
        "The devices of a new partition: gpus, cores (one per core) or cores-<n>",
        _GROUP,
        shown_default="the GPUs, or the cores where there are none",
        excludes="vipu-cluster",
        since="3.0",
    ),
    Option(
        "vipu-cluster",
        NAME,
        "The older name of --vipu-allocation",
        _GROUP,
        excludes="vipu-allocation",
    ),
    Option("update-partition", BOOLEAN, "Update the partition if needed", _GROUP, default=False),
    Option(
        "reset-partition",
        BOOLEAN,
        "Reset the partition before the job",
        _GROUP,
        shown_default="no, as partitions of this machine are reconfigurable",
    ),
    Option(
        "remove-partition",
        BOOLEAN,
        "Remove the partition afterwards, if --vipu-partition created it",
        _GROUP,
        default=True,
    ),
    Option(
        "ipu-link-routing-type",
        NAME,
        "The routing of links within a partition, which an existing one is checked against",
        _GROUP,
        ipu_only=True,
        since="2.1",
    ),
    Option(
        "gw-link-routing-type",
        NAME,
        "The routing of links between gateways, which an existing partition is checked against",
        _GROUP,
        ipu_only=True,
        since="2.1",
    ),
    Option(
        "sync-type",
        NAME,
        "The kind of synchronisation, which an existing partition is checked against",
        _GROUP,
        ipu_only=True,
        since="2.1",
    ),
)
