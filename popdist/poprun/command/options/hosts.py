"""Options about machines: which, how they are reached, and where instances are bound on them."""

from __future__ import annotations

from popdist.poprun.command.options.kinds import BOOLEAN, FILE, HOSTS, TEXT, one_of
from popdist.poprun.command.options.option import Option

_GROUP = "Hosts"
_PLACEMENT = "Placement on a host"

OPTIONS: tuple[Option, ...] = (
    Option(
        "host",
        HOSTS,
        "A comma-separated list of hosts: name, name:slots or name[0-2,4]",
        _GROUP,
        shown_default="the hosts of the Slurm allocation, else this machine",
        aliases=("-H",),
        excludes="hostfile",
    ),
    Option(
        "hostfile",
        FILE,
        "A file with one host a line: name, name:slots or name slots=n",
        _GROUP,
        excludes="host",
        since="3.0",
    ),
    Option(
        "host-subnet",
        TEXT,
        "The network by which hosts reach each other, as 10.1.0.0/16; several with commas",
        _GROUP,
        shown_default="mpirun's choice",
        since="3.0",
    ),
    Option(
        "preflight",
        BOOLEAN,
        "Whether other hosts are looked at over ssh before the job starts",
        _GROUP,
        default=True,
        since="popdist",
    ),
    Option(
        "distribute-ssh-key",
        BOOLEAN,
        "Run ssh-copy-id first for the hosts that deny access; it may ask for passwords",
        _GROUP,
        default=False,
        since="3.0",
    ),
    Option(
        "synchronise-python-venv",
        BOOLEAN,
        "Copy this Python's virtual environment to the same path on the other hosts first",
        _GROUP,
        default=False,
        since="3.0",
    ),
    Option(
        "synchronise-poplar-sdk",
        BOOLEAN,
        "Copy the Poplar SDK to the other hosts first",
        _GROUP,
        default=False,
        ipu_only=True,
        since="3.0",
    ),
    Option(
        "numa-aware",
        BOOLEAN,
        "Bind instances to NUMA nodes in a round-robin fashion",
        _PLACEMENT,
        shown_default="yes where a host has several instances",
    ),
    Option(
        "process-placement",
        one_of("spreadnuma", "disabled"),
        "How a host's NUMA nodes are divided among its instances; the newer form of --numa-aware",
        _PLACEMENT,
        shown_default="spreadnuma where a host has several instances",
        since="3.0",
    ),
)
