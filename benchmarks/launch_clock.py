"""poprun with a clock: prints when each phase of the launch had ended, as JSON, on the last line.

Started as ``python -I -S launch_clock.py <command line of poprun>``, like the console script.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MARKS = [("Python starts", time.monotonic())]


def mark(phase: str) -> None:
    """Notes the end of a phase.

    Args:
        phase: Its name.
    """
    MARKS.append((phase, time.monotonic()))


def marked(
    phase: str, function: Callable[..., Any], before: Callable[..., bool] = lambda *_: True
) -> Callable[..., Any]:
    """Puts a clock around a function.

    Args:
        phase: The phase that ends when the function returns.
        function: The function.
        before: Whether a call with such arguments counts.

    Returns:
        The function with the clock.
    """
    process = os.getpid()

    def call(*words: Any, **more: Any) -> Any:
        answer = function(*words, **more)
        if os.getpid() == process and before(*words):
            mark(phase)
        return answer

    return call


def main() -> int:
    """Runs poprun, whose exit code it returns."""
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))  # noqa: PTH118, PTH120 - cheap
    from popdist.poprun import cli
    from popdist.poprun.supervisor.relay import Relay
    from popdist.poprun.supervisor.supervisor import Supervisor

    mark("imports")
    run = marked("mpirun ends", Supervisor.run)
    instances = int(sys.argv[sys.argv.index("-np") + 1])

    def run_after_planning(*words: Any) -> Any:
        mark("planning")
        return run(*words)

    heard: list[object] = []

    def is_last(*_: Any) -> bool:
        heard.append(None)
        return len(heard) % instances == 0

    for name, phase in (
        ("_on_started", "mpirun and the guard start the programs"),
        ("_on_ended", "the programs run"),
    ):
        setattr(Relay, name, marked(phase, getattr(Relay, name), is_last))
    for owner, name, phase in (
        (os, "posix_spawn", "starting mpirun"),
        (os, "fork", "forking the guard"),
    ):
        setattr(owner, name, marked(phase, getattr(owner, name)))
    setattr(Supervisor, "run", run_after_planning)  # noqa: B010 - a clock is put around it
    code = cli.main()
    mark("clean-up")
    import json  # takes time, so it comes after the last mark

    print(json.dumps(MARKS), flush=True)
    return code


os._exit(main())
