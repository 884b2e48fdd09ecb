"""Puts one instance in its place on its host, just before its program starts there."""

from __future__ import annotations

from popdist.poprun.machines.cpus import cpu_quota, parse_list, usable_cpus, usable_nodes
from popdist.poprun.machines.numa import (
    bind_cpus,
    bind_memory,
    divide,
    share_of,
    share_of_cpus,
    threads_of,
)
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from popdist.poprun.machines.numa import Share

_THREADS = "OMP_NUM_THREADS"


class Place(Record):
    """What an instance gets of its host.

    Attributes:
        share: Its nodes and processors.
        binds: Whether it is bound to them.
        memory: Whether its memory is bound to them too.
        threads: How many threads it should compute with; None to leave that to its libraries.
    """

    share: Share
    binds: bool
    memory: bool
    threads: int | None

    def __str__(self) -> str:
        where = f"bound to {self.share}" if self.binds else "not bound"
        return where if self.threads is None else f"{where}, {self.threads} threads"

    def enter(self, environ: MutableMapping[str, str]) -> str:
        """Binds the calling process and sets its thread count, unless the user has set one.

        Args:
            environ: The environment that its program is going to get.

        Returns:
            Why it could not be bound to its processors; empty where all is well.
        """
        if self.threads is not None:
            environ.setdefault(_THREADS, str(self.threads))
        if not self.binds:
            return ""
        if self.memory and self.share.memory:
            bind_memory(self.share.memory)
        return bind_cpus(self.share.cpus)


def place_of(settings: Mapping[str, str], root: str = "/") -> Place:
    """The place of an instance on this host.

    Args:
        settings: ``neighbours`` (instances on this host), ``local`` (this one's number among them),
            ``numa`` (1 to bind to NUMA nodes), ``granted`` (processors that a batch system grants
            on this host) and ``cpus`` (processors that are reserved for this instance); all
            optional.
        root: Where ``proc`` and ``sys`` are mounted.

    Returns:
        The place.
    """
    instances = int(settings.get("neighbours", "1"))
    cpus = usable_cpus(root)
    nodes = usable_nodes(cpus, root)
    # Where a batch system grants a part of the processors without saying which, binding could only
    # crowd those of another job.
    limits = [cpu_quota(root), int(settings["granted"]) if "granted" in settings else None]
    granted = min((limit for limit in limits if limit is not None), default=None)
    reserved = cpus.intersection(parse_list(settings.get("cpus", "")))
    if reserved:
        share = share_of_cpus(nodes, reserved)
    elif settings.get("numa") == "1" and int(settings.get("granted", len(cpus))) >= len(cpus):
        share = divide(nodes, int(settings.get("local", "0")), instances)
    else:
        share = share_of(nodes, instances)
    threads = threads_of(share, instances, granted, root)
    limited = instances > 1 or (granted is not None and granted < len(share.cpus))
    return Place(
        share=share,
        # Binding to all that there is would only take away what may be granted later.
        binds=share.cpus != cpus,
        memory=len(nodes) > 1,
        threads=threads if limited else None,
    )
