"""Ties a process to the one that started it, so that it cannot outlive it.

mpirun needs this where its programs are on other hosts: guards there see only mpirun's daemons, and
those live as long as mpirun. On one machine the job's pipe does it.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_LINGER_SECONDS = 0.5
_SIGKILL = 9  # the `signal` module costs a guard milliseconds


def load_leash() -> Callable[[], object]:
    """Prepares what may have to be done between fork and exec.

    Returns:
        A function that makes the kernel kill the calling process when its parent ends; it does
        nothing where the system has no such call.
    """
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):  # not Linux
        return lambda: None
    return lambda: prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)


def main(arguments: list[str]) -> None:
    """Becomes a program that ends with its parent, and leaves no folder if that is killed.

    Args:
        arguments: The parent's process number, the folder to remove when the parent has been
            killed, the program and its arguments.
    """
    parent, folder, *words = arguments
    _watch_folder(int(parent), folder)
    load_leash()()
    if os.getppid() == int(parent):  # otherwise it has ended before the kernel knew
        os.execv(words[0], words)  # noqa: S606 - no shell is the point


def _watch_folder(parent: int, folder: str) -> None:
    """Starts a process that removes the folder if the parent does not live to do so."""
    mpirun = os.getpid()
    try:
        watched = [os.pidfd_open(pid) for pid in (mpirun, parent)]
    except (OSError, AttributeError):  # an old kernel; the next launcher will remove it
        return
    between = os.fork()
    if between:  # it ends at once, so that the other process is nobody's child
        os.waitpid(between, 0)
        for fd in watched:
            os.close(fd)
        return
    try:
        if os.fork() == 0:
            _remove_after(watched, folder)
    finally:
        os._exit(0)


def _remove_after(watched: list[int], folder: str) -> None:
    import select
    import shutil

    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    mpirun, parent = watched
    select.select([mpirun], [], [])
    if select.select([parent], [], [], _LINGER_SECONDS)[0]:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
