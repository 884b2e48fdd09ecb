"""Processes as the kernel reports them: state, descendants, and notice of an end."""

from __future__ import annotations

import os
import select
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SIGKILL = 9  # the `signal` module costs a guard milliseconds
_LOOK_SECONDS = 0.01
_KEEPERS = b"multiprocessing.resource_tracker", b"torch_shm_manager"
_KEEPERS_SECONDS = 1.5


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
    """Sends a signal to a process that may have ended or become another user's."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def send_group(group: int, number: int) -> None:
    """Sends a signal to a process group that may have ended or become another user's."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass


def kill_group(group: int) -> None:
    """Kills a process group; last those that remove the shared memory of the others.

    Such a process, as `multiprocessing` and PyTorch start it, ends by itself with the last process
    that it serves. It gets 1.5 seconds, which a busy machine may need.
    """
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return
    _kill_keepers_last(
        [int(name) for name in os.listdir("/proc") if name.isdecimal() and _in(group, name)]
    )
    send_group(group, _SIGKILL)


def _kill_keepers_last(pids: Iterable[int]) -> None:
    """Kills processes, and waits a little for those that clean up after the others."""
    keepers = []
    for pid in pids:
        if any(words in _command(pid) for words in _KEEPERS):
            keepers.append(pid)
        else:
            send(pid, _SIGKILL)
    until = monotonic() + _KEEPERS_SECONDS
    while monotonic() < until and any(process_start(pid) for pid in keepers):
        select.select([], [], [], _LOOK_SECONDS)


def _in(group: int, name: str) -> bool:
    fields = _stat(name)
    return bool(fields) and int(fields[2]) == group


def _command(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def process_start(pid: int) -> str:
    """When a running process began, in ticks since boot; empty where it has ended.

    Tells a process from a later one with the same number.
    """
    fields = _stat(str(pid))
    return "" if not fields or fields[0] in (b"Z", b"X") else fields[19].decode()


def process_state(pid: int) -> str:
    """The kernel's letter for what a process does, such as "T"; empty where it has ended."""
    fields = _stat(str(pid))
    return "" if not fields or fields[0] in (b"Z", b"X") else fields[0].decode()


def watchable(pid: int) -> int | None:
    """A descriptor that becomes readable when a process ends; None where the kernel has none."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None


def is_readable(fd: int | None, seconds: float) -> bool:
    """Whether a descriptor can be read within some seconds, which pass where there is none.

    `select.select` refuses descriptors from 1024 on, which a launcher of many instances has.
    """
    poll = select.poll()
    if fd is not None:
        poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def descendants(pid: int, is_meant: Callable[[int], bool] | None = None) -> list[int]:
    """All living processes that descend from one, parents before their children.

    Args:
        pid: The process.
        is_meant: Whether a child of the process is listed, with all that descends from it.
    """
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        fields = _stat(name) if name.isdecimal() else []
        if fields:
            # A zombie is listed, as its children are not adopted before it is gone.
            children.setdefault(int(fields[1]), []).append(int(name))
    found = [one for one in children.get(pid, ()) if is_meant is None or is_meant(one)]
    for one in found:
        found += children.get(one, ())
    return [one for one in found if process_start(one)]


def children_of(pid: int) -> frozenset[int]:
    """The children of a process, ended ones included; fast if there are none, the usual case."""
    found: set[int] = set()
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found |= {int(word) for word in file.read().split()}
    except OSError:  # a kernel without such files
        return frozenset(descendants(pid))
    return frozenset(found)


def kill_descendants(seconds: float, is_meant: Callable[[int], bool] | None = None) -> None:
    """Kills processes that descend from the calling one, again until none is left.

    Args:
        seconds: After how long to give up those that cannot end, as in a hung disk.
        is_meant: Whether a child of the calling process is killed, with all that descends from
            it. It is asked again at each look, as children may come meanwhile.
    """
    if has_children():
        me = os.getpid()
        _kill_all(seconds, lambda: descendants(me, is_meant))


def kill_marked(mark: str, seconds: float) -> None:
    """Kills the processes of this host that were started with a variable, again until none is left.

    Finds what has no parent that could be asked, as all of its parents were killed.

    Args:
        mark: The variable and its value, as ``name=value``.
        seconds: After how long to give up those that cannot end.
    """
    me = os.getpid()

    def alive() -> list[int]:
        names = (name for name in os.listdir("/proc") if name.isdecimal() and int(name) != me)
        return [int(name) for name in names if mark in variables_of(int(name))]

    _kill_all(seconds, alive)


def variables_of(pid: int) -> list[str]:
    """The environment with which a process was started, ``name=value`` each; none once it ended."""
    try:
        return words_of(f"/proc/{pid}/environ")
    except OSError:  # it has ended, or is another user's
        return []


def words_of(path: str) -> list[str]:
    """The words of a file of ``/proc``, each of which a null byte ends."""
    with open(path, "rb") as file:
        return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]


def _kill_all(seconds: float, look: Callable[[], list[int]]) -> None:
    until = monotonic() + seconds
    _kill_keepers_last(look())
    while True:
        alive = look()
        for pid in alive:
            send(pid, _SIGKILL)
        if not alive or monotonic() >= until:
            return
        select.select([], [], [], _LOOK_SECONDS)


def has_children() -> bool:
    """Whether the calling process has children, ended or not."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def adopt_orphans(*, wanted: bool = True) -> bool:
    """Makes processes whose parents have ended, however detached, children of the calling one.

    Returns:
        Whether the system can do that.
    """
    return _prctl(_PR_SET_CHILD_SUBREAPER, int(wanted))


def hear_of_parents_end(number: int = _SIGKILL) -> bool:
    """Has the kernel send the calling process a signal when its parent ends.

    Returns:
        Whether the system can do that.
    """
    return _prctl(_PR_SET_PDEATHSIG, number)


def _prctl(what: int, value: int) -> bool:
    # What `ctypes` adds to the module below it takes 4 ms to load, in every guard of every job.
    try:
        import _ctypes

        library = _ctypes.dlopen(None, os.RTLD_NOW)  # type: ignore[arg-type]  # this process
        function = _ctypes.dlsym(library, "prctl")
        return bool(_ctypes.call_function(function, (what, value, 0, 0, 0)) == 0)
    except (ImportError, OSError, AttributeError):  # not Linux
        return False


def _stat(pid: str) -> list[bytes]:
    """The fields of a process from its state on; empty where it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []
