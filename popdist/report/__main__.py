"""The command line: ``python -m popdist.report RUN_FOLDER [-o FILE] [--watch SECONDS]``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from popdist.errors import LaunchError, PopdistError
from popdist.report.page import page
from popdist.report.run_reader import read_run
from popdist.whole_files import write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist.report.run_reader import Run

_INTERRUPTED_EXIT_CODE = 130
_LONGEST = 3600

_DAMAGED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program; the exit code is 2 where the folder or the page's place is unusable."""
    parser = argparse.ArgumentParser(
        prog="python -m popdist.report",
        description="Turns the folder of a run (poprun --log-dir) into one HTML page.",
    )
    parser.add_argument("folder", type=Path, metavar="RUN_FOLDER", help="DIR/latest, for example")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the page; default: report.html there"
    )
    parser.add_argument(
        "--timeline", type=Path, metavar="FILE", help="the trace, where job.json does not say it"
    )
    parser.add_argument(
        "--watch", type=_seconds, metavar="SECONDS",
        help="while the job runs, write the page again and again; a browser loads it as often",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    output = options.output or options.folder / "report.html"
    try:
        run = _make(options.folder, options.timeline, output, options.watch)
    except KeyboardInterrupt:
        return _INTERRUPTED_EXIT_CODE
    except PopdistError as error:
        sys.stderr.write(f"popdist.report: {error}\n")
        return 2
    for gap in run.gaps:
        sys.stderr.write(f"missing: {gap}\n")
    sys.stdout.write(f"{output}\n")
    return 0


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 1 <= seconds <= _LONGEST:
        raise argparse.ArgumentTypeError(f"from 1 to {_LONGEST} seconds, seen {text}")
    return seconds


def _make(folder: Path, timeline: Path | None, output: Path, watch: float | None) -> Run:
    """Writes the page; with ``watch`` (seconds) again and again until the job has ended."""
    while True:
        runs = watch is not None and not (folder / "job.json").exists()
        run, text = _page(folder, timeline, watch if runs else None)
        _write(output, text)
        if watch is None or not runs:
            return run
        time.sleep(watch)


def _page(folder: Path, timeline: Path | None, reload: float | None) -> tuple[Run, str]:
    """A run and its page; other programs may have written into the run's files.

    Raises:
        LaunchError: The values in them are none that poprun and popdist write.
    """
    try:
        run = read_run(folder, timeline)
        return run, page(run, reload=reload)
    except PopdistError:
        raise
    except _DAMAGED as error:
        raise LaunchError(
            "PD140",
            f"the files of the run cannot be shown: {type(error).__name__}: {str(error)[:200]}",
            value=str(folder),
            accepted="job.json, metrics.*.jsonl and logs as poprun and popdist have written them",
            hint="move the damaged files to another folder, and try with the others",
        ) from None


def _write(path: Path, text: str) -> None:
    try:
        write_whole(os.fspath(path), text)
    except OSError as error:
        raise LaunchError(
            "PD140",
            f"the page cannot be written: {error.strerror or error}",
            value=str(path),
            accepted="a file in a folder that exists and may be written",
            hint="-o FILE",
        ) from None


if __name__ == "__main__":
    sys.exit(main())
