"""Control groups of a job's programs (``--control-groups``), which find every descendant.

A process belongs to its parent's group from its start on, whatever it does to its session, its
parents or its environment, and the kernel kills all members of a group at once. Each job has a
group of the form of its folder's name below that of poprun, with a group for each instance in it.
While a guard has the job's group locked, the group is in use.
"""

from __future__ import annotations

import fcntl
import os
import select
from time import monotonic, time

from popdist.poprun.protocol.own_folder import has_our_form, new_name

_MOUNTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
_MEMBERS = "cgroup.procs"
_KILL = "cgroup.kill"
_LOOK_SECONDS = 0.005

QUICK_SECONDS = 0.005
"""How long a move between groups makes the next ones quick."""

_OLD_SECONDS = 10.0  # a guard locks a new group sooner


def _own_group() -> str:
    """The folder of the calling process's group.

    Raises:
        OSError: There are no groups of version 2.
    """
    with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        paths = [line[3:].rstrip("\n") for line in file if line.startswith("0::")]
    for mount in _MOUNTS:
        if paths and os.path.exists(f"{mount}{paths[0]}/cgroup.controllers"):
            return os.path.normpath(f"{mount}{paths[0]}")
    raise OSError("this system has no control groups of version 2")


def check() -> None:
    """Checks that the calling process can have groups, and ends groups of killed launchers.

    Raises:
        OSError: It cannot.
    """
    top = _own_group()
    path = f"{top}/{new_name()}"
    os.mkdir(path)
    try:
        os.stat(f"{path}/{_KILL}")  # Linux 5.14 and later
    finally:
        os.rmdir(path)
    with os.scandir(top) as entries:
        found = [entry for entry in entries if has_our_form(entry.name)]
    for entry in found:
        facts = entry.stat(follow_symlinks=False)
        if facts.st_uid != os.geteuid() or time() - facts.st_mtime < _OLD_SECONDS:
            continue
        lock = os.open(entry.path, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _end(entry.path, 0.0)
        except OSError:  # it is in use
            pass
        finally:
            os.close(lock)


def stay_quick() -> None:
    """Makes the moves of the next milliseconds quick, by one to where the caller is.

    A move waits until all processors have passed a state in which no process starts (some 10 ms),
    unless the kernel is in it from the last move.
    """
    try:
        _write(f"{Group.top()}/{_MEMBERS}", "0")
    except OSError:  # not its own group: moves are slow, no more
        pass


class Group:
    """The group of one instance.

    Args:
        job: The job's name.
        index: The instance.

    Raises:
        OSError: The group cannot be made.
    """

    _top = ""  # one process guards all instances

    @staticmethod
    def top() -> str:
        """The folder of the calling process's group, which it does not leave.

        Raises:
            OSError: There are no groups of version 2.
        """
        Group._top = Group._top or _own_group()
        return Group._top

    def __init__(self, job: str, index: str) -> None:
        self._above = f"{self.top()}/{job}"
        self._path = f"{self._above}/{index}"
        while True:
            os.makedirs(self._above, exist_ok=True)
            self._lock = os.open(self._above, os.O_RDONLY)
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            try:
                os.mkdir(self._path)
            except FileNotFoundError:  # another instance was the last one, and has ended
                os.close(self._lock)
            else:
                break

    def enter(self) -> None:
        """Moves the calling process into the group."""
        _write(f"{self._path}/{_MEMBERS}", "0")

    def end(self, seconds: float) -> None:
        """Kills all members, and removes the group; with the last group also that of the job.

        Args:
            seconds: After how long to give up members that cannot end, as in a hung disk.
        """
        _end(self._path, seconds)
        os.close(self._lock)
        try:
            os.rmdir(self._above)
        except OSError:  # another instance is in it
            pass


def end_job(job: str, seconds: float) -> None:
    """Kills all that is left in the groups of a job, if it has any, and removes them."""
    if not has_our_form(job):
        return
    try:
        path = f"{_own_group()}/{job}"
    except OSError:
        return
    if os.path.exists(path):
        _end(path, seconds)


def _end(path: str, seconds: float) -> None:
    try:
        os.rmdir(path)
    except OSError:  # it is not empty
        _kill(path, seconds)


def _kill(path: str, seconds: float) -> None:
    try:
        _write(f"{path}/{_KILL}", "1")
        until = monotonic() + seconds
        while _is_populated(path) and monotonic() < until:
            select.select([], [], [], _LOOK_SECONDS)
        with os.scandir(path) as entries:
            inner = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        for one in (*inner, path):
            os.rmdir(one)
    except OSError:  # another process of the job was quicker, or a member cannot end
        pass


def _is_populated(path: str) -> bool:
    with open(f"{path}/cgroup.events", encoding="ascii") as file:
        return "populated 1" in file.read()


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
