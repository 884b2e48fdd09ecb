"""Evidence that the kernel killed a program because memory was short."""

from __future__ import annotations

import os

_LOG = "/dev/kmsg"
_LARGEST_LOG = 1 << 20


class OomEvidence:
    """Compares the kernel's counters before and after a program's life.

    The control group of the calling process counts what was killed in it: ``memory.events`` of
    version 2, ``memory.oom_control`` of version 1. Where the kernel's log may be read, it names the
    process.
    """

    def __init__(self) -> None:
        self._files = _counters()
        self._before = [_count(path) for path in self._files]

    def about(self, pid: int) -> str:
        """What speaks for it.

        Args:
            pid: The process, which SIGKILL has ended.

        Returns:
            The evidence in words; empty where there is none.
        """
        for path, before in zip(self._files, self._before, strict=True):
            if _count(path) > before:
                limit = _limit(path)
                return "the kernel killed a process of its control group" + (
                    f", whose limit is {limit >> 20} MiB" if limit else ""
                )
        if _is_named_in_log(pid):
            return "the kernel's log names it"
        return ""


def _counters() -> list[str]:
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if "memory" in controllers.split(","):
            folders, name = ["/sys/fs/cgroup/memory"], "memory.oom_control"
        elif number == "0":
            folders, name = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"], "memory.events"
        else:
            continue
        # In a container the group's own path may not be there; its root is then the group itself.
        candidates = [f"{folder}{place}/{name}" for folder in folders for place in (path, "")]
        found += [file for file in candidates if os.path.exists(file)][:1]
    return found


def _count(path: str) -> int:
    """How many processes were killed, by a file whose lines are a name and a number."""
    try:
        with open(path, encoding="ascii") as file:
            counts = dict(line.split() for line in file)
        return int(counts.get("oom_kill", 0))
    except (OSError, ValueError):
        return 0


def _limit(counter: str) -> int:
    folder, name = os.path.split(counter)
    limit = "memory.max" if name == "memory.events" else "memory.limit_in_bytes"
    try:
        with open(f"{folder}/{limit}", encoding="ascii") as file:
            text = file.read().strip()
    except OSError:
        return 0
    return int(text) if text.isdecimal() and int(text) < 1 << 60 else 0


def _is_named_in_log(pid: int) -> bool:
    """Whether the kernel's log says that it killed this process for want of memory."""
    try:
        fd = os.open(_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:  # usually root's alone
        return False
    words = f"Killed process {pid} ".encode()
    read = 0
    try:
        while read < _LARGEST_LOG:
            record = os.read(fd, 8192)
            read += len(record)
            if not record:
                break
            if words in record:
                return True
    except OSError:  # at its end, or overwritten meanwhile
        pass
    finally:
        os.close(fd)
    return False
