"""How many compiler processes fit: by processors, by memory, or as asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from popdist.horovod_build.facts import Machine

BYTES_PER_JOB = 2_400_000_000
"""Room for one compiler process: measured 1.9 GB with GCC 12, and 2.4 GB with debug information."""

DISK_NEEDED = 500_000_000
"""Source, objects and wheel together, with room to spare."""


@dataclass(frozen=True)
class Jobs:
    """Compiler processes at a time.

    Attributes:
        count: How many.
        note: Why not as many as there are processors, or a warning; None where there is nothing
            to say.
    """

    count: int
    note: str | None = None


def choose_jobs(machine: Machine, requested: int | None) -> Jobs:
    """Caps the compiler processes by the memory that is free now.

    A number that the user asked for is taken, with a warning where it does not fit: the memory may
    be about to become free, and only the user knows.

    Args:
        machine: Processors and memory.
        requested: What the user asked for, if anything.

    Returns:
        The number and what to tell the user about it.
    """
    fitting = machine.available_memory // BYTES_PER_JOB
    memory = f"{machine.available_memory / 1e9:.1f} GB of memory is free"
    each = f"a compiler process takes up to {BYTES_PER_JOB / 1e9:.1f} GB"
    if requested is not None:
        if requested > max(1, fitting):
            return Jobs(requested, f"{memory} and {each}: --jobs {requested} may not fit")
        return Jobs(requested)
    if fitting < 1:
        return Jobs(1, f"only {memory} and {each}: the compiler may be killed")
    if fitting < machine.cpus:
        return Jobs(fitting, f"{memory} and {each}: {fitting} at a time, not {machine.cpus}")
    return Jobs(machine.cpus)
