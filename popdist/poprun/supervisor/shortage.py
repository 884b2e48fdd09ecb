"""Whether this machine allows too few processes where a job could not be started."""

from __future__ import annotations

import os

from popdist.errors import LaunchError

# Processes and threads, as measured with Open MPI 4: poprun, its guard and mpirun's four; for each
# instance its front and its program.
_OF_A_JOB = 6
_OF_AN_INSTANCE = 2
_GROUPS = ("/sys/fs/cgroup/pids", "/sys/fs/cgroup", "/sys/fs/cgroup/unified")


def process_shortage(instances: int, *, was_refused: bool) -> LaunchError | None:
    """The error where this machine allows too few processes for a job; None where it allows enough.

    Args:
        instances: Those on this machine.
        was_refused: Whether the kernel has refused a process.
    """
    needed = _OF_A_JOB + _OF_AN_INSTANCE * instances
    limits = [*_group_limits(), *_user_limit()]
    short = [text for text, limit, used in limits if limit - used < needed]
    if not (short or was_refused):
        return None
    return LaunchError(
        "PD118",
        "the limit of processes is too low for this job",
        value=", ".join(short or [text for text, *_ in limits] or ["the kernel refused a process"]),
        accepted=f"{needed} processes and threads or more for {instances} instances on this "
        "machine, and those that the programs start",
        hint="docker run --pids-limit=-1, a larger pids.max or ulimit -u, or fewer instances",
    )


def _group_limits() -> list[tuple[str, int, int]]:
    """The limits of this process's control groups: a text, the limit, and what is in use."""
    found = []
    for line in _read("/proc/self/cgroup").splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if "pids" not in controllers.split(",") and number != "0":
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        for top in _GROUPS:
            for depth in range(len(parts) + 1):
                folder = "/".join([top, *parts[:depth]])
                limit, used = _read(f"{folder}/pids.max"), _read(f"{folder}/pids.current")
                if limit.isdecimal() and used.isdecimal():
                    found.append((f"{limit} in {folder} (pids.max)", int(limit), int(used)))
    return found


def _user_limit() -> list[tuple[str, int, int]]:
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if limit < 0 or os.geteuid() == 0:  # there is none, or it does not apply
        return []
    used = 0
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                if os.stat(f"/proc/{name}").st_uid == os.geteuid():
                    used += len(os.listdir(f"/proc/{name}/task"))
            except OSError:  # it has ended
                pass
    return [(f"{limit} of this user (ulimit -u)", limit, used)]


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
