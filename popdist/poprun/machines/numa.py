"""What one instance gets of its host: NUMA nodes, processors, threads.

`divide` is pure. `bind_cpus` and `bind_memory` act on the calling process, which is the guard's
child on the instance's own host.
"""

from __future__ import annotations

import os

from popdist.poprun.machines.cpus import (
    count_cores,
    cpu_quota,
    format_list,
    parse_list,
    usable_cpus,
    usable_nodes,
)
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

    from popdist.poprun.machines.cpus import Node


# set_mempolicy has no wrapper in the C library; its number depends on the processor.
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "ppc64le": 261, "s390x": 270, "riscv64": 237}
_BIND_MEMORY = 2
_WORD = 64


class Share(Record):
    """What one instance gets of its host.

    Attributes:
        nodes: Numbers of its NUMA nodes.
        cpus: Its processors.
        memory: Numbers of those of its nodes that have memory.
        sharers: How many instances use these processors, itself included.
    """

    nodes: tuple[int, ...]
    cpus: frozenset[int]
    memory: tuple[int, ...]
    sharers: int

    def __str__(self) -> str:
        many = "s" if len(self.nodes) > 1 else ""
        return f"NUMA node{many} {format_list(self.nodes)}, CPUs {format_list(self.cpus)}"


def divide(nodes: Sequence[Node], local_index: int, instances: int) -> Share:
    """The share of one instance among those on its host.

    With fewer instances than nodes, the nodes are divided among the instances in consecutive runs;
    otherwise instances take the nodes in turn.

    Args:
        nodes: The usable nodes of the host.
        local_index: The instance's number on its host.
        instances: How many instances are on that host.

    Returns:
        Its share.
    """
    count = len(nodes)
    if instances <= count:
        first, last = (local_index * count // instances, (local_index + 1) * count // instances)
        return share_of(nodes[first:last])
    turn = local_index % count
    return share_of(nodes[turn : turn + 1], instances // count + (turn < instances % count))


def share_of(nodes: Sequence[Node], sharers: int = 1) -> Share:
    """The share that whole nodes are.

    Args:
        nodes: The nodes.
        sharers: How many instances use them.

    Returns:
        The share.
    """
    cpus = frozenset(cpu for node in nodes for cpu in node.cpus)
    memory = tuple(node.index for node in nodes if node.has_memory)
    return Share(tuple(node.index for node in nodes), cpus, memory, sharers)


def share_of_cpus(nodes: Sequence[Node], cpus: frozenset[int]) -> Share:
    """The share that reserved processors are.

    Args:
        nodes: The usable nodes of the host.
        cpus: The processors that were reserved.

    Returns:
        The share, with the nodes on which they are.
    """
    on = [node for node in nodes if node.cpus & cpus]
    return Share(
        tuple(node.index for node in on),
        frozenset(cpus),
        tuple(node.index for node in on if node.has_memory),
        1,
    )


def threads_of(share: Share, instances: int, granted: int | None, root: str = "/") -> int:
    """How many threads an instance should compute with: one per core that is its own.

    Args:
        share: Its share.
        instances: How many instances are on its host.
        granted: Processors that a control group or a batch system grants on the host, if limited.
        root: Where ``sys`` is mounted.

    Returns:
        The number, at least 1.
    """
    threads = count_cores(share.cpus, root) // share.sharers
    if granted is not None:
        threads = min(threads, granted // instances)
    return max(1, threads)


def bind_cpus(cpus: frozenset[int]) -> str:
    """Binds the calling process to processors.

    Args:
        cpus: What it may use.

    Returns:
        Why that could not be done; empty where it was.
    """
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:  # a processor may have gone offline meanwhile
        return f"not bound to CPUs {format_list(cpus)}: {error.strerror}"
    return ""


def bind_memory(nodes: Sequence[int]) -> bool:
    """Makes the memory of the calling process come from some NUMA nodes only.

    Args:
        nodes: Their numbers.

    Returns:
        Whether that was done. Containers may forbid it; memory then still comes from where the
        processors are as long as there is some, which is the kernel's own rule.
    """
    import ctypes

    number = _SET_MEMPOLICY.get(os.uname().machine)
    if number is None:
        return False
    words = max(nodes) // _WORD + 1
    mask = (ctypes.c_uint64 * words)()
    for node in nodes:
        mask[node // _WORD] |= 1 << node % _WORD
    # The kernel takes one bit less than it is told.
    bits = ctypes.c_ulong(words * _WORD + 1)
    return bool(ctypes.CDLL(None).syscall(number, _BIND_MEMORY, mask, bits) == 0)


# Puts one instance in its place on its host, just before its program starts there.


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
