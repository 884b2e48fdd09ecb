"""What planning a job for many machines takes: a dry run, in time and in memory."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from benchmarks.programs import find_poprun
from benchmarks.ranks import environment
from benchmarks.rows import Aim, Row, compare
from benchmarks.sampling import MeasurementError, Samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Effort

TIME_AIM = Aim(sentence="at most 1 s", of="value", at_most=1.0)
MEMORY_AIM = Aim(sentence="at most 200 MB", of="value", at_most=200.0)
GROWTH_AIM = Aim(sentence="no more per instance than a job of a quarter", of="ratio", at_most=1.1)

_HOSTS, _PER_HOST, _REPLICAS_EACH = 1024, 8, 8


def measure(effort: Effort) -> Iterator[Row]:
    """Plans 65,536 replicas in 8,192 instances on 1,024 hosts, and a quarter of that.

    Args:
        effort: How many times.

    Yields:
        Time, memory, and time against four times that of the quarter.

    Raises:
        MeasurementError: poprun is not installed, or fails.
    """
    whole, quarter = [], []
    for _ in range(effort.choose(full=7, quick=2)):
        whole.append(plan(_HOSTS))
        quarter.append(plan(_HOSTS // 4))
    name = f"plan {_HOSTS * _PER_HOST} instances on {_HOSTS} hosts"
    seconds = Samples(tuple(took for took, _ in whole))
    yield compare(name, seconds, unit="s", aim=TIME_AIM)
    yield compare(
        name,
        seconds,
        unit="s",
        peer="4 x a quarter",
        against=Samples(tuple(4 * took for took, _ in quarter)),
        aim=GROWTH_AIM,
    )
    peaks = sorted(peak for _, peak in whole)
    yield Row(
        name=f"{name}: memory",
        unit="MB",
        value=peaks[0],
        median=peaks[len(peaks) // 2],
        samples=len(peaks),
        aim=MEMORY_AIM,
    )


def plan(hosts: int, per_host: int = _PER_HOST) -> tuple[float, float]:
    """Plans a job once.

    Args:
        hosts: How many.
        per_host: Instances on each, of eight replicas.

    Returns:
        Seconds and megabytes of one dry run.

    Raises:
        MeasurementError: poprun is not installed, or fails.
    """
    poprun = find_poprun()
    if poprun is None:
        raise MeasurementError("poprun is not installed")
    instances = hosts * per_host
    command = [
        *poprun,
        f"--host=node[0001-{hosts:04}]",
        f"--num-instances={instances}",
        f"--num-replicas={instances * _REPLICAS_EACH}",
        "--dry-run=yes",
        "python3",
        "train.py",
    ]
    nothing = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)
    start = time.perf_counter()
    pid = os.posix_spawn(command[0], command, environment(), file_actions=[nothing])
    _, status, usage = os.wait4(pid, 0)
    seconds = time.perf_counter() - start
    if status:
        raise MeasurementError(f"{command[0]} ended with {os.waitstatus_to_exitcode(status)}")
    return seconds, usage.ru_maxrss / 1024
