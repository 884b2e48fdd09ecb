"""One lock per device. Whoever uses a device has its file locked, shared with its own job only.

A launch takes a device while nobody has it locked, and writes its token into the file. Its guards
lock the same file beside it and look for the token; the programs inherit the guards' lock. A device
is free again when the last of them has ended, however it ended: the kernel sees to it.
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
    """Takes a device, where nobody has it. The caller must hold the pool's lock.

    Args:
        path: The device's file.
        token: What its job's guards will look for.
        note: Who takes it, for people, one line.

    Returns:
        A descriptor, which keeps the device until it is closed; None where somebody has it.
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
    """Whether somebody has a device. The caller must hold the pool's lock.

    Args:
        path: The device's file.

    Returns:
        The answer.
    """
    try:
        fd = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    free = _lock_now(fd, fcntl.LOCK_EX)
    os.close(fd)
    return not free


def note_of(path: str) -> str:
    """Who took a device last.

    Args:
        path: The device's file.

    Returns:
        The note; empty where there is none.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_LARGEST).partition("\n")[2].strip()
    except OSError:
        return ""


def keep(settings: Mapping[str, str]) -> str:
    """Keeps the devices of a guard's instance, for the guard and for the program it starts.

    Args:
        settings: ``pool`` (the folder of the devices' files), ``devices`` (their names, with
            commas) and ``hold`` (the job's token).

    Returns:
        Why they could not be kept; empty where they are, for as long as this process or one that
        inherits its descriptors lives.
    """
    for name in settings["devices"].split(","):
        path = os.path.join(settings["pool"], name)
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError as error:
            return f"device {name}: {error.strerror}"
        # Another launch may just be trying whether it is free.
        locked = lock_within(fd, fcntl.LOCK_SH, _PATIENCE_S)
        if not locked or os.pread(fd, _LARGEST, 0).split(b"\n")[0] != settings["hold"].encode():
            os.close(fd)
            return f"device {name} is not this job's any more, because its launcher has ended"
        os.set_inheritable(fd, True)  # noqa: FBT003 - positional only
    return ""


def lock_within(fd: int, how: int, seconds: float) -> bool:
    """Locks a file, with patience that ends.

    Args:
        fd: The file.
        how: ``fcntl.LOCK_SH`` or ``fcntl.LOCK_EX``.
        seconds: How long to wait for others.

    Returns:
        Whether it was locked.
    """
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
