"""The private folder of a running job, and the removal of folders of killed launchers."""

from __future__ import annotations

import fcntl
import os
import time

from popdist.errors import LaunchError
from popdist.poprun.protocol.guard_argv import Fronts

_PREFIX = "poprun-"
_YOUNG_SECONDS = 30.0


def new_folder(*, is_local: bool = False, has_one_guard: bool = False) -> JobFolder:
    """Makes a private folder for temporary files, and the pipes that a job needs in it.

    ``is_local`` and ``has_one_guard`` are the job's properties of these names.

    The path is absolute, because mpirun and programs may have other working directories.

    Raises:
        LaunchError: The folder cannot be made.
    """
    parent = os.path.abspath(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - a private one in it
    try:
        return JobFolder(parent, is_local=is_local, has_one_guard=has_one_guard)
    except OSError as error:
        raise LaunchError(
            "PD109",
            f"no private folder can be made for the job: {error.strerror}",
            value=parent,
            accepted="a folder for temporary files that can be written",
            hint="TMPDIR=/path/to/one",
        ) from None


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
        self.path = os.path.join(parent, f"{_PREFIX}{os.urandom(8).hex()}")
        os.mkdir(self.path, 0o700)
        self._lock = os.open(self.path, os.O_RDONLY)
        _try_lock(self._lock)
        self.session = os.path.join(self.path, "mpi")
        self.pipe = self.keyboard = None
        if is_local:
            self.keyboard = os.path.join(self.path, "stdin")
            os.mkfifo(self.keyboard, 0o600)
            if not has_one_guard:
                self.pipe = os.path.join(self.path, "pipe")
                os.mkfifo(self.pipe, 0o600)

    def open_fronts(self, count: int) -> Fronts:
        """Makes and opens the pipes of ``count`` fronts."""
        return Fronts(self.path, count)

    def remove(self) -> None:
        """Removes the folder and its content."""
        try:
            for name in os.listdir(self.path):
                path = os.path.join(self.path, name)
                os.rmdir(path) if path == self.session else os.unlink(path)
            os.rmdir(self.path)
        except OSError:  # a killed mpirun has not cleaned up, or a guard was quicker
            _remove_tree(self.path)
        os.close(self._lock)


def _remove_abandoned(parent: str) -> None:
    """Removes folders of this user's launchers that were killed."""
    try:
        with os.scandir(parent) as entries:
            names = [entry.path for entry in entries if entry.name.startswith(_PREFIX)]
    except OSError:
        return
    for path in names:
        if _is_abandoned(path):
            _remove_tree(path)


def _is_abandoned(path: str) -> bool:
    try:
        facts = os.lstat(path)
        # A new folder may not be locked yet.
        if facts.st_uid != os.geteuid() or time.time() - facts.st_mtime < _YOUNG_SECONDS:
            return False
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return _try_lock(fd)
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove_tree(path: str) -> None:
    import shutil

    shutil.rmtree(path, ignore_errors=True)
