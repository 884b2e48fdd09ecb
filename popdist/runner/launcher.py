"""The launcher that `popdist.run` starts: poprun, which ends with its caller and reports to it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from popdist.errors import PopdistError
from popdist.poprun.cli import (
    INTERRUPTED_EXIT_CODE,
    USAGE_EXIT_CODE,
    hide_secrets_of_command_line,
    launch,
)
from popdist.poprun.protocol.own_folder import remove_own
from popdist.poprun.secrets import hide

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_SIGTERM = 15


def main(arguments: Sequence[str]) -> NoReturn:
    """Runs a job, and exits with its exit code.

    The arguments are the caller's process number, its private folder, the descriptor for the
    report, the file for the job's result, and poprun's command line.
    """
    caller, folder, report, path, *words = arguments
    _end_with(int(caller))
    hide_secrets_of_command_line()
    code, facts = _run(words, path)
    try:
        with os.fdopen(int(report), "w", encoding="utf-8") as file:
            json.dump(facts, file)
        sys.stdout.flush()
    except BrokenPipeError:  # the caller has been killed, and can no longer remove its folder
        remove_own(folder)
    os._exit(code)


def _run(words: Sequence[str], path: str) -> tuple[int, dict[str, object]]:
    """The exit code, and either the job's result or why it was refused."""
    try:
        code = launch(words)
        return code, {"result": json.loads(Path(path).read_text(encoding="utf-8"))}
    except PopdistError as error:
        fields = ("code", "what", "value", "accepted", "hint")
        told = {name: getattr(error, name) for name in fields}
        told = {name: hide(str(text)) for name, text in told.items() if text is not None}
        return USAGE_EXIT_CODE, {"refused": {"kind": type(error).__name__, **told}}
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT_CODE, {}
    except OSError:  # a dry run, or the disk is full, which poprun has said
        return code, {}


def _end_with(caller: int) -> None:
    """Requests a signal from the kernel when the calling thread ends; the signal ends the job."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGTERM, 0, 0, 0)
    if os.getppid() != caller:
        os._exit(128 + _SIGTERM)
