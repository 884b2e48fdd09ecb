"""The allocation that Slurm has granted: hosts, and how many instances each host has slots for.

Slurm describes the allocation in environment variables of ``sbatch`` scripts, ``salloc`` shells and
``srun`` steps. Pure.
"""

from __future__ import annotations

import re

from popdist.errors import LaunchError
from popdist.poprun.machines.host_list import parse_hosts
from popdist.poprun.machines.hosts import Host
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_COUNTS = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?")
_LISTED = 8


class Allocation(Record):
    """What Slurm has granted.

    Attributes:
        job: Slurm's number of the job.
        hosts: The hosts with their slots and processors.
        tasks: The number of tasks that the user asked Slurm for; None without such a request.
        overcommits: Whether Slurm was told that processors may be shared.
    """

    job: str
    hosts: tuple[Host, ...]
    tasks: int | None
    overcommits: bool = False

    @property
    def slots(self) -> int:
        """How many instances the allocation has room for."""
        return sum(host.slots or 1 for host in self.hosts)


def read_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Reads the allocation that this process runs in; None outside of an allocation.

    Where the user asked for tasks, a task is a slot. Otherwise the granted processors are divided
    into slots of ``--cpus-per-task`` processors.

    Raises:
        LaunchError: The variables are not understood, ``srun`` has started several launchers, or
            the allocation has several components.
    """
    job = environ.get("SLURM_JOB_ID", "")
    nodes = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST", "")
    if not job or not nodes:
        return None
    step_tasks = _number(environ, "SLURM_STEP_NUM_TASKS") if "SLURM_STEP_ID" in environ else None
    if step_tasks is not None and step_tasks > 1 and "SLURM_PROCID" in environ:
        raise LaunchError(
            "PD121",
            f"srun starts poprun {step_tasks} times, and each would start the whole job",
            value=f"SLURM_STEP_NUM_TASKS={step_tasks}",
            accepted="poprun itself, started once in the allocation",
            hint="call poprun without srun, or with srun --ntasks=1",
        )
    if (_number(environ, "SLURM_HET_SIZE") or 1) > 1:
        raise LaunchError(
            "PD121",
            "poprun cannot use an allocation of several components (a heterogeneous job)",
            value=f"SLURM_HET_SIZE={environ['SLURM_HET_SIZE']}",
            accepted="an allocation of one component",
            hint="ask for hosts of one kind, without ':' between options of sbatch or salloc",
        )
    names = [host.name for host in parse_hosts(nodes)]
    cpus = _per_node(environ, "SLURM_JOB_CPUS_PER_NODE", len(names))
    tasks = None if step_tasks == 1 else _number(environ, "SLURM_NTASKS")
    per_node = _number(environ, "SLURM_NTASKS_PER_NODE")
    if tasks is None and per_node is not None and step_tasks is None:
        tasks = per_node * len(names)
    slots = None if tasks is None else _per_node(environ, "SLURM_TASKS_PER_NODE", len(names))
    if tasks is not None and slots is None and per_node is not None:
        slots = [per_node] * len(names)
    if slots is None:
        each = _number(environ, "SLURM_CPUS_PER_TASK") or 1
        slots = [max(1, count // each) for count in cpus or [1] * len(names)]
    return Allocation(
        job=job,
        hosts=tuple(
            Host(name, slots[index], cpus[index] if cpus else None)
            for index, name in enumerate(names)
        ),
        tasks=tasks,
        overcommits="SLURM_OVERCOMMIT" in environ,
    )


def default_instances(allocation: Allocation, num_replicas: int | None) -> int:
    """How many instances a job has without ``--num-instances``.

    One per task where the user asked Slurm for tasks, but not more than replicas. Otherwise one per
    host, or one where only the number of replicas was given.
    """
    if allocation.tasks is not None:
        return min(allocation.tasks, num_replicas or allocation.tasks)
    return len(allocation.hosts) if num_replicas is None else 1


def take_hosts(allocation: Allocation, wanted: Sequence[Host], instances: int) -> tuple[Host, ...]:
    """The hosts that get instances, in order, with one slot per instance.

    Instances are divided evenly over the hosts where the hosts have the slots. Otherwise hosts are
    filled in order. No ``wanted`` hosts mean the whole allocation.

    Raises:
        LaunchError: A host is not in the allocation, or the allocation is too small.
    """
    granted = {host.name: host for host in allocation.hosts}
    hosts = [_granted(granted, host, allocation) for host in wanted] or list(allocation.hosts)
    room = [host.slots or 1 for host in hosts]
    # Slots that the user wrote are filled in order, as without Slurm.
    fills = any(host.slots is not None for host in wanted)
    if fills:
        room = [min(host.slots or 1, most) for host, most in zip(wanted, room, strict=True)]
    counts = _fill(room, instances) if fills else _even(room, instances)
    if sum(counts) < instances:
        if not allocation.overcommits:
            raise _too_small(allocation, sum(room), instances)
        counts = _spread(len(hosts), instances)
    return tuple(
        Host(host.name, count, host.cpus)
        for host, count in zip(hosts, counts, strict=True)
        if count
    )


def unused_tasks(allocation: Allocation, instances: int) -> str:
    """One line about tasks that the job does not use, or an empty text."""
    if allocation.tasks is None or instances >= allocation.tasks:
        return ""
    idle = allocation.tasks - instances
    return (
        f"note: {idle} of the {allocation.tasks} tasks of Slurm job {allocation.job} stay idle; "
        f"--num-instances {allocation.tasks} uses all, sbatch --ntasks={instances} asks for no more"
    )


def _granted(granted: Mapping[str, Host], host: Host, allocation: Allocation) -> Host:
    for name in (host.name, host.name.partition(".")[0]):
        if name in granted:
            return granted[name]
    if host.is_local:  # localhost is one of the hosts too
        for other in allocation.hosts:
            if other.is_local:
                return other
    names = ", ".join(list(granted)[:_LISTED]) + (", ..." if len(granted) > _LISTED else "")
    raise LaunchError(
        "PD121",
        f"a host is not in the allocation of Slurm job {allocation.job}",
        value=host.name,
        accepted=names,
        hint="leave --host out to use the whole allocation",
    )


def _too_small(allocation: Allocation, room: int, instances: int) -> LaunchError:
    asked = "tasks" if allocation.tasks is not None else "processors"
    return LaunchError(
        "PD121",
        f"the allocation of Slurm job {allocation.job} is too small for the instances",
        value=f"{instances} instances, room for {room} by its {asked}",
        accepted=f"at most {room} instances",
        hint=f"--num-instances {room}, or ask for more: sbatch --ntasks={instances} "
        "(--overcommit lets instances share processors)",
    )


def _even(room: Sequence[int], instances: int) -> list[int]:
    counts = _spread(len(room), instances)
    fits = all(count <= most for count, most in zip(counts, room, strict=True))
    return counts if fits else _fill(room, instances)


def _spread(hosts: int, instances: int) -> list[int]:
    """Instance i is on host i * H // I, as `popdist.poprun.plan.placement` does without slots."""
    counts = [0] * hosts
    for index in range(instances):
        counts[index * hosts // instances] += 1
    return counts


def _fill(room: Sequence[int], instances: int) -> list[int]:
    counts = []
    for most in room:
        counts.append(min(most, instances))
        instances -= counts[-1]
    return counts


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if not text:
        return None
    if not _COUNTS.fullmatch(text) or "(" in text:
        raise _malformed(name, text, "a whole number")
    return int(text)


def _per_node(environ: Mapping[str, str], name: str, nodes: int) -> list[int] | None:
    """Reads one number for every node, such as ``2(x3),1``."""
    text = environ.get(name)
    if not text:
        return None
    numbers: list[int] = []
    for part in text.split(","):
        match = _COUNTS.fullmatch(part)
        if match is None or int(match[2] or 1) > nodes:
            raise _malformed(name, text, "numbers such as 2(x3),1")
        numbers += [int(match[1])] * int(match[2] or 1)
    if len(numbers) != nodes:
        raise _malformed(name, text, f"numbers for {nodes} nodes, as SLURM_JOB_NODELIST has them")
    return numbers


def _malformed(name: str, text: str, accepted: str) -> LaunchError:
    return LaunchError(
        "PD121",
        f"Slurm's variable {name} is not understood",
        value=text,
        accepted=accepted,
        hint="unset SLURM_JOB_ID to leave Slurm aside",
    )
