"""The end of a guard: the launcher has heard everything, and nothing of the job is left."""

from __future__ import annotations

import os
import select
from time import monotonic

from popdist.poprun.protocol.processes import process_start, send, watchable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_DRAIN_SECONDS = 2.0  # less than the launcher grants mpirun
_LOOK_SECONDS = 0.5  # between looks whether the guard may leave
_MPIRUNS_LAST_WORD = 1.2
_SIGKILL = 9
_DAEMONS = ("orted", "prted")
_SESSION = "PMIX_SERVER_TMPDIR"


def drain(wake: int, above: list[int | None], grace: float, may_leave: Callable[[], bool]) -> None:
    """Stays until the launcher says that it has heard, or those above are gone, or time is up.

    An mpirun whose last program has ended drops what is still on its way, and one of whose programs
    has failed ends the others with no more than a second's grace.

    Args:
        wake: A descriptor that can be read after each signal.
        above: Descriptors that can be read when mpirun or what it started has ended.
        grace: Seconds that programs get to end.
        may_leave: Whether the launcher has heard everything.
    """
    poll = select.poll()
    for fd in (wake, *above):
        if fd is not None:
            poll.register(fd, select.POLLIN)
    until = monotonic() + grace + _DRAIN_SECONDS
    while not may_leave() and monotonic() < until:
        events = [fd for fd, _ in poll.poll(_LOOK_SECONDS * 1000)]
        if wake in events:
            os.read(wake, 1024)
        if any(fd != wake for fd in events):
            return


def remove_after(mpirun: int, folder: str) -> None:
    """Starts a process that sees mpirun out and then removes the folder of a killed launcher.

    Args:
        mpirun: mpirun, which keeps files of its own in there while it runs.
        folder: The job's folder.
    """
    if os.fork():
        return
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):  # mpirun would wait for their end
            os.dup2(nothing, fd)
        os.closerange(3, 256)
        _see_out(mpirun)
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(0)


def see_daemon_out(daemon: int, environ: Mapping[str, str], *, cut_off: bool) -> None:
    """Removes what mpirun's daemon of another host has left of itself.

    Args:
        daemon: The daemon, or mpirun itself, which poprun looks after.
        environ: The guard's environment, in which the daemon names its folder.
        cut_off: Whether this host was cut off, where the daemon waits for a long time.
    """
    if cut_off and _command(daemon) in _DAEMONS:
        send(daemon, _SIGKILL)
        ended = watchable(daemon)
        select.select([] if ended is None else [ended], [], [], _LOOK_SECONDS)
    folder = environ.get(_SESSION, "")
    ours = os.path.basename(os.path.dirname(folder)).startswith(("ompi.", "prte."))
    if ours and not process_start(daemon):
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
        try:
            os.rmdir(os.path.dirname(folder))
        except OSError:  # another job of this user is there
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
        select.select([] if ended is None else [ended], [], [], 0.1)
