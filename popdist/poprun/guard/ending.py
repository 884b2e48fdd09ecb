"""The end of a guard: the launcher has every report, and no process or file of the job remains."""

from __future__ import annotations

import os
import select
import stat
from time import monotonic

from popdist.poprun.protocol.guard_argv import JOB
from popdist.poprun.protocol.own_folder import remove, remove_own
from popdist.poprun.protocol.processes import (
    is_readable,
    kill_marked,
    process_start,
    send,
    watchable,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DRAIN_SECONDS = 2.0
"""Less than the launcher grants mpirun."""

_LOOK_SECONDS = 0.5  # between looks whether the guard may leave
_MPIRUNS_LAST_WORD = 1.2
_SIGKILL = 9
_DAEMONS = ("orted", "prted")
_SHARED = "/dev/shm"  # noqa: S108 - where Open MPI puts them
_SEGMENTS = "vader_segment.", "sm_segment."  # of Open MPI 4 and 5
_SEGMENT_DOTS = 4
_HEX = frozenset("0123456789abcdef")
_SESSION = "PMIX_SERVER_TMPDIR"


def drain(
    wake: int, above: list[int | None], patience: float, may_leave: Callable[[], bool]
) -> None:
    """Waits until the launcher has every report, a process above has ended, or time is over.

    mpirun discards unsent output when its last program has ended, and grants the other programs at
    most a second after a failure. ``above`` are descriptors that are readable when mpirun or its
    starter has ended.
    """
    poll = select.poll()
    for fd in (wake, *above):
        if fd is not None:
            poll.register(fd, select.POLLIN)
    until = monotonic() + patience
    while not may_leave() and monotonic() < until:
        events = [fd for fd, _ in poll.poll(_LOOK_SECONDS * 1000)]
        if wake in events:
            os.read(wake, 1024)
        if any(fd != wake for fd in events):
            return


def remove_after(mpirun: int, folder: str) -> None:
    """Starts a process that waits for mpirun's end and removes a killed launcher's folder."""

    def work() -> None:
        _see_out(mpirun)
        remove_own(folder)

    _detach(work)


def _detach(work: Callable[[], None]) -> None:
    """Works in a process of its own that outlives this one, and for which nobody waits."""
    if os.fork():
        return
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):  # mpirun would wait for their end
            os.dup2(nothing, fd)
        os.closerange(3, 256)
        work()
    finally:
        os._exit(0)


def stand_by(folder: str, mpirun: int) -> None:
    """Starts a process that does a killed guard's work if poprun is killed too.

    The process waits for poprun's end; a poprun that ends as usual ends it with all that is left.

    Args:
        folder: The job's folder, which poprun has locked.
        mpirun: mpirun's process.
    """
    os.setsid()  # mpirun ends the group of what it has started
    if os.fork():
        return
    try:
        import fcntl

        from popdist.poprun.protocol.control_group import end_job

        fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX)
        name = os.path.basename(folder)
        kill_marked(f"{JOB}={name}", DRAIN_SECONDS)
        end_job(name, DRAIN_SECONDS)
        _see_out(mpirun)
        remove_own(folder)
    finally:
        os._exit(0)


def remove_segments(since: float) -> None:
    """Removes shared memory of MPI programs whose mpirun was killed, which would have done so.

    Args:
        since: When the job began, in seconds since the epoch. Older files, and files that a
            process still uses, stay.
    """
    try:
        found = [f"{_SHARED}/{name}" for name in os.listdir(_SHARED) if _is_segment(name)]
    except OSError:
        return
    unused = {path for path in found if _is_ours(path, since)}
    for name in os.listdir("/proc") if unused else ():
        if name.isdecimal():
            unused -= _mapped(name)
    for path in unused:
        _unlink(path)


def _is_segment(name: str) -> bool:
    """Whether a name is one of Open MPI's: ``<prefix><host>.<user>.<job>.<rank>``."""
    kind = next((kind for kind in _SEGMENTS if name.startswith(kind)), None)
    if kind is None or name.count(".") < _SEGMENT_DOTS:
        return False
    host, user, *numbers = name.removeprefix(kind).rsplit(".", 3)
    here = os.uname().nodename
    is_here = host in (here, here.partition(".")[0]) and user == str(os.geteuid())
    return is_here and all(map(_HEX.issuperset, numbers))


def _is_ours(path: str, since: float) -> bool:
    try:
        facts = os.lstat(path)
    except OSError:
        return False
    is_file = stat.S_ISREG(facts.st_mode)
    return is_file and facts.st_uid == os.geteuid() and facts.st_ctime >= since


def _mapped(process: str) -> set[str]:
    """The files that a process has in its memory."""
    try:
        with open(f"/proc/{process}/maps", encoding="utf-8", errors="surrogateescape") as maps:
            return {line.split(maxsplit=5)[-1].rstrip("\n") for line in maps}
    except OSError:  # it has ended, or is another user's
        return set()


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:  # another guard has done so
        pass


def see_daemon_out(daemon: int, began: str, environ: Mapping[str, str], patience: float) -> None:
    """Starts a process that ends mpirun's daemon on another host, and removes its files.

    Args:
        daemon: The daemon's process.
        began: When it began, to tell it from a later process of the same number.
        environ: The environment that it gave its programs.
        patience: Seconds that it has to end by itself. One that mpirun cannot reach may never end.
    """
    _detach(lambda: _see_daemon_out(daemon, began, environ, patience))


def _see_daemon_out(daemon: int, began: str, environ: Mapping[str, str], patience: float) -> None:
    if process_start(daemon) == began and _command(daemon) in _DAEMONS:
        ended = watchable(daemon)
        if not is_readable(ended, patience):
            send(daemon, _SIGKILL)
            is_readable(ended, _LOOK_SECONDS)
    folder = environ.get(_SESSION, "")
    above = os.path.basename(os.path.dirname(folder))
    is_session = above.startswith(("ompi.", "prte.")) and str(os.geteuid()) in above.split(".")
    if not is_session or process_start(daemon) == began:
        return
    try:
        session = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        if os.fstat(session).st_uid == os.geteuid():
            remove(folder, session)
        os.close(session)
        os.rmdir(os.path.dirname(folder))
    except OSError:  # it is gone, or another job of this user uses the folder above
        pass


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _see_out(mpirun: int) -> None:
    began = process_start(mpirun)
    ended = watchable(mpirun)
    until = monotonic() + _MPIRUNS_LAST_WORD
    while began and process_start(mpirun) == began:
        if monotonic() >= until:
            send(mpirun, _SIGKILL)
            until = monotonic() + _MPIRUNS_LAST_WORD
        is_readable(ended, 0.1)
