"""One lock per device: a device in use has its file locked, shared only within its own job.

A launch takes a device that is not locked, and writes its token into the file. The launch's guards
lock the same file and check the token; the programs inherit the guards' lock. The kernel frees the
device when the last of these processes has ended, for any reason.
"""

from __future__ import annotations

import fcntl
import os
from time import monotonic, sleep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_PATIENCE_S = 5.0
_LARGEST = 4096


def take(path: str, token: str, note: str) -> int | None:
    """Takes a free device under the pool's lock; ``note`` names the user in one line.

    The returned descriptor holds the device until closed; None means that the device is in use.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if not _lock_now(fd, fcntl.LOCK_EX):
        os.close(fd)
        return None
    os.ftruncate(fd, 0)
    text = f"{token}\n{note}\n"
    os.pwrite(fd, text.encode(errors="backslashreplace")[:_LARGEST], 0)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def is_taken(path: str) -> bool:
    """Whether a device is in use; the caller must hold the pool's lock."""
    try:
        fd = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    free = _lock_now(fd, fcntl.LOCK_EX)
    os.close(fd)
    return not free


def note_of(path: str) -> str:
    """The note of the last user of a device; empty without one."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_LARGEST).partition("\n")[2].strip()
    except OSError:
        return ""


def keep(settings: Mapping[str, str]) -> tuple[str, list[int]]:
    """Locks the devices of a guard's instance.

    The settings are ``pool`` (the folder of the device files), ``devices`` (names, with commas) and
    ``hold`` (the job's token).

    Returns:
        An error text, empty on success, and descriptors: the lock lasts while a process has them.
    """
    held: list[int] = []
    for name in settings["devices"].split(","):
        path = os.path.join(settings["pool"], name)
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError as error:
            return f"device {name}: {error.strerror}", held
        held.append(fd)
        # Another launch may be testing the lock at this moment.
        locked = lock_within(fd, fcntl.LOCK_SH, _PATIENCE_S)
        if not locked or os.pread(fd, _LARGEST, 0).split(b"\n")[0] != settings["hold"].encode():
            why = "is not this job's any more, because its launcher has ended"
            return f"device {name} {why}", held
    return "", held


def lock_within(fd: int, how: int, seconds: float) -> bool:
    """Locks a file (``LOCK_SH`` or ``LOCK_EX``) within ``seconds``, and returns the success."""
    until = monotonic() + seconds
    while not _lock_now(fd, how):
        if monotonic() > until:
            return False
        sleep(0.003)
    return True


def _lock_now(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
