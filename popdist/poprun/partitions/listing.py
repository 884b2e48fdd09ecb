"""``poprun partitions``: lists the partitions of this machine, and removes permanent ones."""

from __future__ import annotations

import os
import sys

from popdist.errors import LaunchError, UsageError
from popdist.poprun.partitions.pool import Pool
from popdist.poprun.protocol.device_locks import note_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist.poprun.partitions.pool import Partition

_PATIENCE_S = 10.0


def main(arguments: Sequence[str]) -> int:
    """Runs the subcommand with no arguments, or ``remove`` and names; returns the exit code 0.

    Raises:
        UsageError: The arguments are not understood.
        LaunchError: A partition does not exist, or is in use.
    """
    with Pool(os.environ, _PATIENCE_S) as pool:
        if not arguments:
            sys.stdout.write(_table(pool) + "\n")
        elif arguments[0] == "remove" and len(arguments) > 1:
            for name in arguments[1:]:
                _remove(pool, name)
        else:
            raise UsageError(
                "PD100",
                "poprun partitions does not know this",
                value=" ".join(arguments),
                accepted="poprun partitions, or poprun partitions remove NAME ...",
                hint="a program of that name is started with: poprun -- partitions",
            )
    return 0


def _table(pool: Pool) -> str:
    evicted = pool.evict()
    lines = [f"evicted: {', '.join(evicted)}"] if evicted else []
    for partition in pool.partitions().values():
        kept = "stays" if partition.owner is None else f"ends with PID {partition.owner.pid}"
        lines.append(
            f"{partition.name}: {len(partition.devices)} devices of {partition.cluster}, {kept}"
        )
        lines += [f"  {name}: {value}" for name, value in partition.attributes.items()]
        used = set(pool.in_use(partition))
        for name in partition.devices:
            note = note_of(pool.device_file(name)) if name in used else "free"
            lines.append(f"  {name}: {note}")
    return "\n".join(lines) or "there are no partitions"


def _remove(pool: Pool, name: str) -> None:
    partition = _find(pool, name)
    used = pool.in_use(partition)
    if used:
        raise LaunchError(
            "PD131",
            f"partition {name} is in use",
            value="; ".join(sorted({note_of(pool.device_file(one)) for one in used})),
            hint="end the job first",
        )
    pool.remove(name)


def _find(pool: Pool, name: str) -> Partition:
    partitions = pool.partitions()
    if name not in partitions:
        raise LaunchError(
            "PD130",
            "there is no such partition",
            value=name,
            accepted=", ".join(partitions) or "none: there are no partitions",
        )
    return partitions[name]
