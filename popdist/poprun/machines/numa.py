"""What one instance gets of its host: NUMA nodes, processors, threads.

`divide` is pure. `bind` acts on the calling process, and is called by the guard between fork and
exec, on the instance's own host.
"""

from __future__ import annotations

import os

from popdist.poprun.machines.cpus import count_cores, format_list
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

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


def bind(share: Share, *, memory: bool) -> str:
    """Binds the calling process.

    Args:
        share: What it may use.
        memory: Whether its memory comes from those nodes only.

    Returns:
        What could not be done, in words; empty where all was.
    """
    try:
        os.sched_setaffinity(0, share.cpus)
    except OSError as error:
        return f"CPUs {format_list(share.cpus)}: {error.strerror}"
    if memory and share.memory:
        return _bind_memory(share.memory)
    return ""


def _bind_memory(nodes: Sequence[int]) -> str:
    import ctypes

    number = _SET_MEMPOLICY.get(os.uname().machine)
    if number is None:
        return ""  # first touch keeps memory near the bound processors all the same
    words = max(nodes) // _WORD + 1
    mask = (ctypes.c_uint64 * words)()
    for node in nodes:
        mask[node // _WORD] |= 1 << node % _WORD
    library = ctypes.CDLL(None, use_errno=True)
    # The kernel takes one bit less than it is told.
    if library.syscall(number, _BIND_MEMORY, mask, ctypes.c_ulong(words * _WORD + 1)) != 0:
        return f"memory of nodes {format_list(nodes)}: {os.strerror(ctypes.get_errno())}"
    return ""
