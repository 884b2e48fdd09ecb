"""Compiles and installs Horovod: the one step that takes minutes.

The build runs in its own session, so that ending the session ends every compiler process too. All
output goes to a log; the terminal shows the progress. The remaining time is not estimated, because
the slowest steps are the last and an estimate would keep growing.
"""

from __future__ import annotations

import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import IO, TYPE_CHECKING, TextIO

from popdist.errors import BuildError
from popdist.horovod_build.diagnose import explain_build

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from popdist.horovod_build.plan import Build


_NINJA = re.compile(r"^\[(\d+)/(\d+)\] (.*)$")
_MAKE = re.compile(r"^\[\s*(\d+)%\] (.*)$")
_SOURCE = re.compile(r"([\w.+-]+\.(?:cc|cpp|cu|c))\.o$")
_PLAIN_EVERY_S = 15.0
_LIVE_EVERY_S = 0.5


@dataclass(frozen=True)
class Progress:
    """A state of the build.

    Attributes:
        phase: The current phase, in words.
        done: Share of the compilation, from 0 to 1; None before it starts.
        steps: Finished steps and all steps, where known, such as ``"31/146"``.
        doing: The current file, where known.
    """

    phase: str = "preparing"
    done: float | None = None
    steps: str = ""
    doing: str = ""


def advance(state: Progress, line: str) -> Progress:
    """The state after one more line of CMake's, Ninja's, make's or setuptools' output."""
    if match := _NINJA.match(line):
        step, steps = int(match.group(1)), int(match.group(2))
        share = step / max(1, steps)
        return Progress("compiling", share, f"{step}/{steps}", _file(match.group(3)))
    if match := _MAKE.match(line):
        return Progress("compiling", int(match.group(1)) / 100, "", _file(match.group(2)))
    if state.phase == "preparing" and line.startswith("-- "):
        return replace(state, phase="configuring")
    if line.startswith(("creating", "adding '")) and state.done == 1:
        return replace(state, phase="packing")
    return state


def clock(seconds: float) -> str:
    """Seconds as minutes and seconds, such as ``"1:05"``."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def describe(state: Progress, elapsed: float) -> str:
    """The progress as one line; ``elapsed`` is in seconds since the start."""
    parts = [state.phase]
    if state.done is not None:
        parts.append(f"{state.done:4.0%}" + (f" ({state.steps})" if state.steps else ""))
    parts.append(f"{clock(elapsed)} elapsed")
    if state.doing:
        parts.append(state.doing)
    return "  ".join(parts)


class Display:
    """Shows the progress: one live line on a terminal, else a plain line every 15 seconds.

    Args:
        stream: The stream for the lines.
        live: Whether the stream is a terminal.
    """

    def __init__(self, stream: TextIO, *, live: bool) -> None:
        self._stream = stream
        self._live = live
        self._next = 0.0 if live else _PLAIN_EVERY_S

    def update(self, state: Progress, elapsed: float) -> None:
        """Shows the state, unless the last line is recent; ``elapsed`` is in seconds."""
        if elapsed < self._next:
            return
        self._next = elapsed + (_LIVE_EVERY_S if self._live else _PLAIN_EVERY_S)
        text = describe(state, elapsed)
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write("\r\x1b[K" + text[:width])
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def finish(self) -> None:
        """Removes the live line."""
        if self._live:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def _file(step: str) -> str:
    match = _SOURCE.search(step)
    return match.group(1) if match else ""


_TICK_S = 0.5
_GRACE_S = 5
_PAUSE_S = 0.02
_LOG_READ = 8 << 20


def build(
    plan: Build, root: Path, out: Path, log: Path, environ: Mapping[str, str], *, verbose: bool
) -> Path:
    """Builds the wheel in the empty folder ``out``, from the patched source at ``root``.

    Raises:
        BuildError: The compilation failed; the message has the reason where the log shows one.
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
    """Runs a long command with its output in a log and its progress on the terminal."""
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
    """Copies the output to the log until its end, and shows the progress at every tick."""
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
    """Ends the remaining processes of the build's session, and waits for their end."""
    left = _signal(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    while left and time.monotonic() < deadline:
        process.poll()
        time.sleep(_PAUSE_S)
        left = _signal(process.pid, 0)
    _signal(process.pid, signal.SIGKILL)


def _signal(group: int, number: int) -> bool:
    """Whether the process group still existed."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def _ends(log: Path) -> str:
    """The beginning and the end of a log; the middle of a long log is skipped."""
    size = log.stat().st_size
    with log.open("rb") as file:
        text = file.read(_LOG_READ)
        if size > 2 * _LOG_READ:
            file.seek(size - _LOG_READ)
        text += file.read(_LOG_READ)
    return text.decode(errors="replace")


_NAME = "horovod"


def installed() -> str | None:
    """The version of the installed Horovod, such as ``"0.28.1+popdist.0123456789abcdef"``, or None.

    The local part is the key of popdist's build.
    """
    try:
        return distribution(_NAME).version
    except PackageNotFoundError:
        return None


def identity() -> str:
    """The installation's place, version and time, or an empty text; a reinstallation differs."""
    try:
        found = distribution(_NAME)
    except PackageNotFoundError:
        return ""
    record = Path(str(found.locate_file(""))) / f"{_NAME}-{found.version}.dist-info" / "RECORD"
    changed = record.stat().st_mtime_ns if record.is_file() else 0
    return f"{record} {found.version} {changed}"


def install(wheel: Path) -> None:
    """Installs a wheel into the running interpreter's environment, in place of any other.

    Raises:
        BuildError: pip refuses.
    """
    command = [
        *(sys.executable, "-m", "pip", "install", "--no-deps", "--force-reinstall", "--no-index"),
        *("--disable-pip-version-check", "--no-input", "--quiet", str(wheel)),
    ]
    done = subprocess.run(
        command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines() or ["nothing"]
        raise BuildError(
            "PD205",
            "pip could not install the wheel",
            value=said[-1],
            accepted="an environment that this user may write to",
            hint=f"use a virtual environment, or see what pip says: pip install --no-deps {wheel}",
        )
