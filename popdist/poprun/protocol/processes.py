"""Small truths about processes that guards and the launcher both need."""

from __future__ import annotations

import os


def lead_group(pid: int) -> None:
    """Makes a child lead a process group; parent and child both do so, as either may run first.

    Args:
        pid: The child, or 0 for the calling process.
    """
    try:
        os.setpgid(pid, pid)
    except OSError:  # it has done so itself, and may already run or have ended
        pass


def send(pid: int, number: int) -> None:
    """Sends a signal to a process that may have ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def send_group(group: int, number: int) -> None:
    """Sends a signal to a process group that may have ended or become another user's."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass


def process_start(pid: int) -> str:
    """When a running process began, in ticks since boot; empty where it has ended.

    Tells a process from a later one with the same number.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


def watchable(pid: int) -> int | None:
    """A descriptor that becomes readable when a process ends; None where the kernel has none."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None
