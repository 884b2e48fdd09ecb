"""Runs mpirun of a job on several hosts, and ends every process that mpirun has started here.

poprun runs this file as a process between itself and mpirun. Guards on other hosts cannot detect
poprun's end, and mpirun's ssh to a dead host would wait for a quarter of an hour. On one machine
the job's pipe and poprun itself do this work.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` adds enums, for 5 ms
import os
import sys

sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "..")))

from popdist.poprun.protocol.own_folder import remove_own
from popdist.poprun.protocol.processes import (
    adopt_orphans,
    hear_of_parents_end,
    kill_descendants,
    send,
)
from popdist.poprun.protocol.signals import (
    END_AT_ONCE,
    END_SOFTLY,
    FORWARDED,
    WAKE,
)

_LAST_WORD_SECONDS = 2.0
_ORPHANED = signal.SIGTRAP  # no other process sends this signal


def main(arguments: list[str]) -> int:
    """Runs mpirun and returns its exit code; a signal that ends mpirun ends this process too.

    The arguments are poprun's process number, the job's folder, and mpirun's command.
    """
    parent, folder, *words = arguments
    adopt_orphans()
    mpirun = os.fork()
    if mpirun == 0:
        try:
            hear_of_parents_end()
            os.execv(words[0], words)  # noqa: S606 - no shell is the point
        finally:
            os._exit(127)

    def on_orphaned(_number: int, _frame: object) -> None:
        send(mpirun, signal.SIGKILL)
        kill_descendants(_LAST_WORD_SECONDS)
        remove_own(folder)
        os._exit(1)

    for number in (*FORWARDED, END_SOFTLY, END_AT_ONCE, WAKE):
        signal.signal(number, lambda number, _: send(mpirun, number))
    signal.signal(_ORPHANED, on_orphaned)
    hear_of_parents_end(_ORPHANED)
    if os.getppid() != int(parent):  # poprun ended before the request to the kernel
        on_orphaned(0, None)
    _, status = os.waitpid(mpirun, 0)
    kill_descendants(_LAST_WORD_SECONDS)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
