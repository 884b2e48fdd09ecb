"""Files that are written whole: a new file gets the name only once its content is complete."""

from __future__ import annotations

import os

_LONGEST_STEM = 200  # a file's name has at most 255 bytes


def target(path: str) -> str:
    """Where a link of the user's own leads; other paths are returned unchanged.

    A link that another user has planted in a shared folder is replaced, not followed.
    """
    try:
        is_own = os.path.islink(path) and os.lstat(path).st_uid == os.geteuid()
    except OSError:
        return path
    return os.path.realpath(path) if is_own else path


def new_beside(path: str) -> tuple[str, int]:
    """The path and the descriptor of a new file in the same folder, with an unknown name.

    Raises:
        OSError: The file cannot be made.
    """
    folder, name = os.path.split(path)
    fresh = os.path.join(folder, f".{name[:_LONGEST_STEM]}.{os.urandom(8).hex()}")
    return fresh, os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)


def write_whole(path: str, text: str) -> None:
    """Writes a file atomically; a device or a pipe at this path is written to.

    Raises:
        OSError: The file cannot be written; an older file is unchanged.
    """
    # A word that is not UTF-8 is escaped as in JSON.
    data = text.encode("utf-8", "backslashreplace")
    path = target(path)
    if os.path.exists(path) and not os.path.isfile(path):  # /dev/null, a pipe
        with open(path, "wb") as stream:
            stream.write(data)
        return
    fresh, fd = new_beside(path)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        os.replace(fresh, path)
    except OSError:
        os.unlink(fresh)
        raise
