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
    """Becomes a program that ends with its parent.

    Args:
        arguments: The parent's process number, the program and its arguments.
    """
    load_leash()()
    if os.getppid() == int(arguments[0]):  # otherwise it has ended before the kernel knew
        os.execv(arguments[1], arguments[1:])  # noqa: S606 - no shell is the point


if __name__ == "__main__":
    main(sys.argv[1:])
