"""The NUMA nodes, processors and threads of one instance on its host.

`divide` is pure. `bind_cpus` and `bind_memory` act on the calling process, which is the guard's
child on the instance's own host.
"""

from __future__ import annotations

import os

from popdist.poprun.machines.cpus import read_machine
from popdist.poprun.protocol.guard_argv import format_list, parse_list
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

    from popdist.poprun.machines.cpus import Machine, Node


# set_mempolicy has no wrapper in the C library; the call's number depends on the processor.
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "ppc64le": 261, "s390x": 270, "riscv64": 237}
_BIND_MEMORY = 2
_WORD = 64


class Share(Record):
    """The NUMA nodes and processors of one instance.

    Attributes:
        nodes: Numbers of the NUMA nodes.
        cpus: Numbers of the processors.
        memory: Numbers of the nodes that have memory.
        sharers: How many instances use these processors, this instance included.
    """

    nodes: tuple[int, ...]
    cpus: frozenset[int]
    memory: tuple[int, ...]
    sharers: int

    def __str__(self) -> str:
        many = "s" if len(self.nodes) > 1 else ""
        return f"NUMA node{many} {format_list(self.nodes)}, CPUs {format_list(self.cpus)}"


def divide(nodes: Sequence[Node], local_index: int, instances: int) -> Share:
    """The share of instance ``local_index`` among the ``instances`` on one host.

    With fewer instances than nodes, each instance gets consecutive nodes. Otherwise instances take
    the nodes in turn.
    """
    count = len(nodes)
    if instances <= count:
        first, last = (local_index * count // instances, (local_index + 1) * count // instances)
        return share_of(nodes[first:last])
    turn = local_index % count
    return share_of(nodes[turn : turn + 1], instances // count + (turn < instances % count))


def share_of(nodes: Sequence[Node], sharers: int = 1) -> Share:
    """The share that consists of whole nodes, used by ``sharers`` instances."""
    cpus = frozenset(cpu for node in nodes for cpu in node.cpus)
    memory = tuple(node.index for node in nodes if node.has_memory)
    return Share(tuple(node.index for node in nodes), cpus, memory, sharers)


def share_of_cpus(nodes: Sequence[Node], cpus: frozenset[int]) -> Share:
    """The share that consists of reserved processors, with their nodes."""
    on = [node for node in nodes if node.cpus & cpus]
    return Share(
        tuple(node.index for node in on),
        frozenset(cpus),
        tuple(node.index for node in on if node.has_memory),
        1,
    )


def threads_of(machine: Machine, share: Share, instances: int, granted: int | None) -> int:
    """How many threads an instance computes with, at least 1: one per core of its share.

    ``granted`` is the number of processors that a control group or batch system grants on the host.
    """
    threads = machine.count_cores(share.cpus) // share.sharers
    if granted is not None:
        threads = min(threads, granted // instances)
    return max(1, threads)


def bind_cpus(cpus: frozenset[int]) -> str:
    """Binds the calling process to processors, and returns an error text, empty on success."""
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:  # a processor may have gone offline meanwhile
        return f"not bound to CPUs {format_list(cpus)}: {error.strerror}"
    return ""


def bind_memory(nodes: Sequence[int]) -> bool:
    """Allocates the calling process's memory on some NUMA nodes only.

    Returns False where the system forbids this, as containers may. The kernel then prefers memory
    near the processors.
    """
    import ctypes

    number = _SET_MEMPOLICY.get(os.uname().machine)
    if number is None:
        return False
    words = max(nodes) // _WORD + 1
    mask = (ctypes.c_uint64 * words)()
    for node in nodes:
        mask[node // _WORD] |= 1 << node % _WORD
    # The kernel reads one bit less than this number.
    bits = ctypes.c_ulong(words * _WORD + 1)
    return bool(ctypes.CDLL(None).syscall(number, _BIND_MEMORY, mask, bits) == 0)


# The place of an instance, entered just before the instance's program starts.

_THREADS = "OMP_NUM_THREADS"


class Place(Record):
    """The share of an instance, and what of it is enforced.

    Attributes:
        share: The nodes and processors.
        binds: Whether the instance is bound to the processors.
        memory: Whether the instance's memory is bound to the nodes.
        threads: The number of compute threads; None for the libraries' own default.
    """

    share: Share
    binds: bool
    memory: bool
    threads: int | None

    def __str__(self) -> str:
        where = f"bound to {self.share}" if self.binds else "not bound"
        return where if self.threads is None else f"{where}, {self.threads} threads"

    def enter(self, environ: MutableMapping[str, str]) -> str:
        """Binds the calling process and sets its thread count, unless the user has set a count.

        Returns why binding to processors failed; empty on success.
        """
        if self.threads is not None:
            environ.setdefault(_THREADS, str(self.threads))
        if not self.binds:
            return ""
        if self.memory and self.share.memory:
            bind_memory(self.share.memory)
        return bind_cpus(self.share.cpus)


def place_of(settings: Mapping[str, str], root: str = "/", known: Machine | None = None) -> Place:
    """The place of an instance on this host.

    Args:
        settings: ``neighbours`` (instances on this host), ``local`` (this instance's number among
            them), ``numa`` (1 to bind to NUMA nodes), ``granted`` (processors that a batch system
            grants on this host) and ``cpus`` (processors reserved for this instance). All are
            optional.
        root: Where ``proc`` and ``sys`` are mounted.
        known: What was read of this machine before; it holds for the same affinity mask.
    """
    instances = int(settings.get("neighbours", "1"))
    if known is None or known.allowed != os.sched_getaffinity(0):
        known = read_machine(root)
    cpus, nodes = known.cpus, known.nodes
    # Where a batch system grants a number of processors without their indices, binding could choose
    # processors of another job.
    limits = [known.quota, int(settings["granted"]) if "granted" in settings else None]
    granted = min((limit for limit in limits if limit is not None), default=None)
    reserved = cpus.intersection(parse_list(settings.get("cpus", "")))
    if reserved:
        share = share_of_cpus(nodes, reserved)
    elif settings.get("numa") == "1" and int(settings.get("granted", len(cpus))) >= len(cpus):
        share = divide(nodes, int(settings.get("local", "0")), instances)
    else:
        share = share_of(nodes, instances)
    threads = threads_of(known, share, instances, granted)
    limited = instances > 1 or (granted is not None and granted < len(share.cpus))
    return Place(
        share=share,
        # Binding to all processors would exclude processors that are granted later.
        binds=share.cpus != cpus,
        memory=len(nodes) > 1,
        threads=threads if limited else None,
    )
