"""The processors of this machine that a process may use, and their NUMA nodes, from ``/sys``.

Guards read these files on their own host before programs start, so few files are read: one more
file per processor is read only where hyper-threads are on.
"""

from __future__ import annotations

import os

from popdist.poprun.protocol.guard_argv import parse_list
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_CPU = "sys/devices/system/cpu"
_NODE = "sys/devices/system/node"


class Node(Record):
    """A NUMA node.

    Attributes:
        index: The node's number.
        cpus: The node's processors that this process may use.
        has_memory: Whether the node has memory of its own.
    """

    index: int
    cpus: frozenset[int]
    has_memory: bool = True


class Machine(Record):
    """What the files of a machine say to a process with a certain affinity mask.

    Attributes:
        allowed: The affinity mask.
        cpus: The processors of it that are online.
        nodes: Their NUMA nodes.
        quota: How many processors' time the control groups grant; None without a limit.
        cores: The processors of each core.
    """

    allowed: frozenset[int]
    cpus: frozenset[int]
    nodes: tuple[Node, ...]
    quota: int | None
    cores: tuple[tuple[int, ...], ...]

    def count_cores(self, cpus: frozenset[int]) -> int:
        """How many cores some of the machine's processors belong to."""
        return sum(not cpus.isdisjoint(core) for core in self.cores)


def read_machine(root: str = "/") -> Machine:
    """Reads what the calling process may use; ``proc`` and ``sys`` are mounted in ``root``."""
    cpus = usable_cpus(root)
    return Machine(
        allowed=frozenset(os.sched_getaffinity(0)),
        cpus=cpus,
        nodes=usable_nodes(cpus, root),
        quota=cpu_quota(root),
        cores=tuple(group_cores(cpus, root)),
    )


def usable_cpus(root: str = "/") -> frozenset[int]:
    """Numbers of the processors in the process's affinity mask, without offline processors."""
    allowed = frozenset(os.sched_getaffinity(0))
    online = frozenset(parse_list(_read(root, f"{_CPU}/online")))
    return allowed & online or allowed


def usable_nodes(cpus: frozenset[int], root: str = "/") -> tuple[Node, ...]:
    """The online NUMA nodes that have some of ``cpus``; one node where ``/sys`` lists none."""
    with_memory = _read(root, f"{_NODE}/has_memory")
    memory = set(parse_list(with_memory))
    found = []
    for index in parse_list(_read(root, f"{_NODE}/online")):
        inside = cpus.intersection(parse_list(_read(root, f"{_NODE}/node{index}/cpulist")))
        if inside:
            found.append(Node(index, inside, has_memory=index in memory or not with_memory))
    return tuple(found) or (Node(0, cpus),)


def count_cores(cpus: Iterable[int], root: str = "/") -> int:
    """How many cores ``cpus`` belong to; hyper-threads of one core count once."""
    return len(group_cores(cpus, root))


def group_cores(cpus: Iterable[int], root: str = "/") -> list[tuple[int, ...]]:
    """The processors of each core, in the order of the lowest processor numbers."""
    numbers = sorted(cpus)
    if _read(root, f"{_CPU}/smt/active") == "0":
        return [(cpu,) for cpu in numbers]
    cores: dict[tuple[int, ...], list[int]] = {}
    for cpu in numbers:
        siblings = parse_list(_read(root, f"{_CPU}/cpu{cpu}/topology/thread_siblings_list"))
        cores.setdefault(tuple(siblings) or (cpu,), []).append(cpu)
    return [tuple(core) for core in cores.values()]


def cpu_quota(root: str = "/") -> int | None:
    """How many processors' time the control groups grant, at least 1; None without a limit."""
    grants = []
    for line in _read(root, "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder, read = "sys/fs/cgroup", _quota_2
        elif "cpu" in controllers.split(","):
            folder, read = "sys/fs/cgroup/cpu", _quota_1
        else:
            continue
        # A limit of any ancestor holds too; a container sees its own group as the topmost.
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts) + 1):
            grant = read(root, "/".join([folder, *parts[:depth]]))
            if grant is not None:
                grants.append(max(1, grant))
    return min(grants, default=None)


def _quota_2(root: str, folder: str) -> int | None:
    quota, _, period = _read(root, f"{folder}/cpu.max").partition(" ")
    return int(quota) // int(period) if quota.isdecimal() and period.isdecimal() else None


def _quota_1(root: str, folder: str) -> int | None:
    quota = _read(root, f"{folder}/cpu.cfs_quota_us")
    period = _read(root, f"{folder}/cpu.cfs_period_us")
    return int(quota) // int(period) if quota.isdecimal() and period.isdecimal() else None


def _read(root: str, path: str) -> str:
    try:
        with open(os.path.join(root, path), encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""
