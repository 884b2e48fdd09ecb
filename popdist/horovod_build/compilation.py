"""Runs the compilation: the one step that takes minutes.

The build runs in a session of its own, so that ending it ends every compiler process too. All its
output goes to a log; the terminal sees how far it is.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from typing import IO, TYPE_CHECKING

from popdist.errors import BuildError
from popdist.horovod_build.diagnose import explain_build
from popdist.horovod_build.progress import Display, Progress, advance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from popdist.horovod_build.plan import Plan

_TICK_S = 0.5
_GRACE_S = 5
_PAUSE_S = 0.02
_LOG_READ = 8 << 20


def build(
    plan: Plan, root: Path, out: Path, log: Path, environ: Mapping[str, str], *, verbose: bool
) -> Path:
    """Builds the wheel.

    Args:
        plan: The build.
        root: The patched source.
        out: An empty folder for the wheel.
        log: Where all output goes.
        environ: The user's environment.
        verbose: Whether the output goes to the terminal too.

    Returns:
        The wheel.

    Raises:
        BuildError: The compilation failed; the text says why, as far as the log tells.
    """
    command = [part.replace("{out}", str(out)) for part in plan.command]
    code = run(command, root, plan.environment(environ, root), log, verbose=verbose)
    wheels = sorted(out.glob("*.whl"))
    if code != 0 or not wheels:
        why = explain_build(_ends(log))
        raise BuildError(
            "PD202",
            why.what,
            value=why.seen,
            accepted=why.accepted,
            hint=f"{why.hint}. The whole log: {log}",
        )
    return wheels[0]


def run(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    log: Path,
    *,
    verbose: bool,
) -> int:
    """Runs a long command with its output in a log and its progress on the terminal.

    Args:
        command: The command.
        folder: Where it runs.
        environment: Its whole environment.
        log: Where its output goes.
        verbose: Whether its output goes to the terminal too.

    Returns:
        Its exit code.
    """
    display = Display(sys.stderr, live=sys.stderr.isatty() and not verbose)
    with log.open("ab") as record:
        record.write(("$ " + " ".join(command) + "\n").encode())
        with subprocess.Popen(
            list(command),
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            try:
                assert process.stdout is not None  # noqa: S101 - it is a pipe
                _follow(process.stdout, record, display, verbose=verbose)
                return process.wait()
            finally:
                display.finish()
                _end(process)


def _follow(pipe: IO[bytes], record: IO[bytes], display: Display, *, verbose: bool) -> None:
    """Copies the output to the log until it ends, and shows how far it is at every tick."""
    state, rest, start = Progress(), b"", time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            if selector.select(_TICK_S):
                block = os.read(pipe.fileno(), 1 << 16)
                if not block:
                    return
                record.write(block)
                record.flush()
                if verbose:
                    sys.stderr.buffer.write(block)
                    sys.stderr.flush()
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    state = advance(state, line.decode(errors="replace").rstrip("\r"))
            display.update(state, time.monotonic() - start)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends what is left of the build's session, and waits until it is gone."""
    left = _signal(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    while left and time.monotonic() < deadline:
        process.poll()
        time.sleep(_PAUSE_S)
        left = _signal(process.pid, 0)
    _signal(process.pid, signal.SIGKILL)


def _signal(group: int, number: int) -> bool:
    """Whether there was someone to signal."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def _ends(log: Path) -> str:
    """A log's beginning and end; what lies between never held the reason."""
    size = log.stat().st_size
    with log.open("rb") as file:
        text = file.read(_LOG_READ)
        if size > 2 * _LOG_READ:
            file.seek(size - _LOG_READ)
        text += file.read(_LOG_READ)
    return text.decode(errors="replace")
