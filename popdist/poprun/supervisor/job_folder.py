"""The private folders of a running job, and the removal of folders of killed launchers."""

from __future__ import annotations

import errno
import fcntl
import os

from popdist.errors import LaunchError
from popdist.poprun.protocol.guard_argv import Fronts
from popdist.poprun.protocol.own_folder import (
    has_our_form,
    make_folder,
    mark,
    new_name,
    open_own,
    remove,
)

# More than mpirun's files take for a few instances: 36 KiB, 23 files.
_ROOM_BYTES = 1 << 17
_ROOM_FILES = 64


def new_folder(*, is_local: bool = False, has_one_guard: bool = False) -> JobFolder:
    """Makes a private folder for temporary files, and the pipes that a job needs in it.

    ``is_local`` and ``has_one_guard`` are the job's properties of these names.

    The path is absolute, because mpirun and programs may have other working directories.

    Raises:
        LaunchError: The folder cannot be made.
    """
    try:
        return JobFolder(_parent(), is_local=is_local, has_one_guard=has_one_guard)
    except OSError as error:
        raise unusable(error.strerror) from None


def unusable(why: str | None) -> LaunchError:
    """The error where the folder for temporary files cannot be used."""
    return LaunchError(
        "PD109",
        f"no private folder can be made for the job: {why}",
        value=_parent(),
        accepted="a folder for temporary files that can be written and has room",
        hint="TMPDIR=/path/to/one",
    )


def _parent() -> str:
    return os.path.abspath(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - a private one in it


class JobFolder:
    """A private folder for the job's pipes and for mpirun's own files, removed at the end.

    It is locked while this process lives, by which another launcher sees that it is in use, also
    from inside another container.

    Args:
        parent: The folder for temporary files.
        is_local: Whether guards are on this machine and can reach pipes.
        has_one_guard: Whether they are one process, which has a pipe without a name.

    Attributes:
        pipe: The guards' pipe to the launcher, or None.
        keyboard: The pipe for instance 0's standard input, or None.
        session: Where mpirun may keep its files.
    """

    def __init__(self, parent: str, *, is_local: bool, has_one_guard: bool) -> None:
        _remove_abandoned(parent)
        # tempfile does the same for a quarter of the launcher's time budget.
        name = new_name()
        self.path = os.path.join(parent, name)
        self._lock = make_folder(self.path)
        try:
            _try_lock(self._lock)
            mark(self._lock, name)  # it has the lock already when another launcher may find it
            _check_room(self._lock)
            self.session = os.path.join(self.path, "mpi")
            self.pipe = self.keyboard = None
            if is_local:
                self.keyboard = os.path.join(self.path, "stdin")
                os.mkfifo(self.keyboard, 0o600)
                if not has_one_guard:
                    self.pipe = os.path.join(self.path, "pipe")
                    os.mkfifo(self.pipe, 0o600)
        except OSError:
            self.remove()
            raise

    def open_fronts(self, count: int) -> Fronts:
        """Makes and opens the pipes of ``count`` fronts."""
        return Fronts(self.path, count)

    def remove(self) -> None:
        """Removes the folder and its content."""
        remove(self.path, self._lock)
        os.close(self._lock)


class Parts:
    """A new folder for files that instances on other hosts write, beside the file made of them.

    Args:
        prefix: The beginning of its path.

    Attributes:
        path: Its path.
    """

    def __init__(self, prefix: str) -> None:
        self.path = f"{prefix}-{os.urandom(8).hex()}"
        self._folder = make_folder(self.path)

    def remove(self) -> None:
        """Removes the folder and its content."""
        remove(self.path, self._folder)
        os.close(self._folder)


def _check_room(folder: int) -> None:
    """Checks that mpirun's small files have room; its own messages do not name the cause."""
    facts = os.fstatvfs(folder)
    is_root = os.geteuid() == 0
    blocks = facts.f_bfree if is_root else facts.f_bavail
    files = facts.f_ffree if is_root else facts.f_favail
    is_full = facts.f_blocks and blocks * facts.f_frsize < _ROOM_BYTES
    if is_full or (facts.f_files and files < _ROOM_FILES):  # some file systems count neither
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _remove_abandoned(parent: str) -> None:
    """Removes folders of this user's launchers that were killed."""
    try:
        with os.scandir(parent) as entries:
            paths = [entry.path for entry in entries if has_our_form(entry.name)]
    except OSError:
        return
    for path in paths:
        folder = open_own(path)
        if folder is not None:
            if _try_lock(folder):
                remove(path, folder)
            os.close(folder)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
