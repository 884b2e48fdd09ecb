"""The folder of a run's logs, ``<dir>/<date>-<time>-<program>/``."""

from __future__ import annotations

import errno
import os
import re
import time

from popdist.errors import LaunchError
from popdist.whole_files import new_beside, target

_LATEST = "latest"
_MOST_TRIES = 1000
_RUN = re.compile(r"\d{8}-\d{6}-[^/]+")


def make_run_folder(parent: str, program: str) -> str:
    """Makes a folder for a run, and sets the link ``latest`` to the folder.

    Raises:
        LaunchError: The folder cannot be made.
    """
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.path.basename(program) or 'program'}"
    base = os.path.join(os.path.abspath(parent), name)
    try:
        os.makedirs(parent, exist_ok=True)
        path = _make_new(base)
        _point(os.path.join(os.path.abspath(parent), _LATEST), os.path.basename(path))
    except OSError as error:
        raise unwritable("--log-dir", parent, error) from None
    return path


def check_folder(option: str, path: str) -> None:
    """Checks whether a folder, or new files in the folder, could be made, without making any.

    Raises:
        LaunchError: The folder cannot be used; the message has the name of ``option``.
    """
    there = os.path.abspath(path)
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    try:
        if not os.path.isdir(there):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(there, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise unwritable(option, path, error) from None


def check_writable(option: str, path: str) -> str:
    """Checks before the job starts that a file can be written; returns its absolute path.

    Raises:
        LaunchError: The file cannot be written.
    """
    absolute = target(os.path.abspath(path))
    try:
        if os.path.isdir(absolute):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if os.path.exists(absolute):
            if not os.access(absolute, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        else:
            fresh, fd = new_beside(absolute)
            os.close(fd)
            os.unlink(fresh)
    except OSError as error:
        raise unwritable(option, path, error) from None
    return absolute


def unwritable(option: str, path: str, error: OSError) -> LaunchError:
    """The error for a place that cannot be written."""
    return LaunchError(
        "PD110",
        f"the file or folder of {option} cannot be written: {error.strerror or error}",
        value=path,
        accepted="a path in a folder that exists and may be written",
    )


def _make_new(base: str) -> str:
    for number in range(_MOST_TRIES):
        path = f"{base}.{number}" if number else base
        try:
            os.mkdir(path)
        except FileExistsError:  # another run of the same second
            continue
        return path
    raise FileExistsError(base)


def _point(link: str, target: str) -> None:
    """Replaces the link to another run's folder atomically; anything else is left unchanged."""
    if os.path.lexists(link) and not (os.path.islink(link) and _RUN.fullmatch(os.readlink(link))):
        return
    fresh = f"{link}.{os.urandom(8).hex()}"
    os.symlink(target, fresh)
    os.replace(fresh, link)
