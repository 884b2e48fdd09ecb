"""Folders that poprun has made, which are the only ones that it ever removes.

A folder in a place that others use too, such as ``/tmp``, is known by its exact name, by a marker
that names its device and inode, and by its owner. Links are not followed, and the removal does not
leave the folder's file system. A folder that was renamed, copied or mounted over is a user's.
"""

from __future__ import annotations

import os

_PREFIX = "poprun-"
_DIGITS = frozenset("0123456789abcdef")
_NUMBER_LENGTH = 16
_MARKER = ".poprun"
_LONGEST_MARKER = 200


def new_name() -> str:
    """A name that no other job has."""
    return f"{_PREFIX}{os.urandom(_NUMBER_LENGTH // 2).hex()}"


def has_our_form(name: str) -> bool:
    """Whether `new_name` makes such names."""
    number = name.removeprefix(_PREFIX)
    return number != name and len(number) == _NUMBER_LENGTH and _DIGITS.issuperset(number)


def make_folder(path: str) -> int:
    """Makes a private folder, and returns its descriptor.

    Raises:
        OSError: The folder exists, or cannot be made.
    """
    os.mkdir(path, 0o700)
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        os.rmdir(path)
        raise


def mark(folder: int, name: str) -> None:
    """Marks a new folder as made by poprun; without a marker it is never removed by its name.

    Raises:
        OSError: The marker cannot be written.
    """
    how = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    fd = os.open(_MARKER, how, 0o600, dir_fd=folder)
    try:
        os.write(fd, _marker(folder, name))
    finally:
        os.close(fd)


def open_own(path: str) -> int | None:
    """A descriptor of a folder that poprun has made; None for everything else."""
    name = os.path.basename(path)
    if not has_our_form(name):
        return None
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    if os.fstat(folder).st_uid == os.geteuid() and _read_marker(folder) == _marker(folder, name):
        return folder
    os.close(folder)
    return None


def remove_own(path: str) -> None:
    """Removes a folder that poprun has made; anything else at this path is left as it is."""
    folder = open_own(path)
    if folder is not None:
        remove(path, folder)
        os.close(folder)


def remove(path: str, folder: int) -> None:
    """Removes a folder and its content, if the path still leads to that folder.

    Args:
        path: Its path.
        folder: A descriptor of it. The caller knows that poprun has made the folder.
    """
    facts = os.fstat(folder)
    try:
        here = os.lstat(path)
        if (here.st_dev, here.st_ino) != (facts.st_dev, facts.st_ino):
            return
        _empty(folder, facts.st_dev, last=_MARKER)
        os.rmdir(path)
    except OSError:  # another process of the job was quicker, or still writes
        pass


def _empty(folder: int, device: int, last: str = "") -> None:
    """Removes the content; the entry ``last`` only once nothing else is left."""
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name == last)
    for entry in found:
        try:
            if entry.is_dir(follow_symlinks=False):
                _remove_inner(entry.name, folder, device)
            else:
                os.unlink(entry.name, dir_fd=folder)
        except FileNotFoundError:  # noqa: PERF203 - another process of the job was quicker
            pass


def _remove_inner(name: str, parent: int, device: int) -> None:
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        if os.fstat(inner).st_dev == device:
            _empty(inner, device)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=parent)


def _marker(folder: int, name: str) -> bytes:
    facts = os.fstat(folder)
    return f"made by poprun: {name} {facts.st_uid} {facts.st_dev} {facts.st_ino}\n".encode()


def _read_marker(folder: int) -> bytes:
    try:
        fd = os.open(_MARKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return b""
    try:
        return os.read(fd, _LONGEST_MARKER)
    except OSError:  # a folder of that name
        return b""
    finally:
        os.close(fd)
