"""The command line: ``python -m benchmarks [--list] [--only NAME] [--quick] [--json FILE] ...``."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import charts, record
from benchmarks.document import as_document, as_json
from benchmarks.harness import Effort, UnknownBenchmarkError, run, select
from benchmarks.machine import describe
from benchmarks.report import as_list, as_table
from benchmarks.suite import SUITE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.harness import Report

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "images" / "benchmarks"
"""Where the charts of the committed record are, for the page that shows them."""

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program.

    Args:
        arguments: The command line; None for that of this process.

    Returns:
        The exit code: 1 where a benchmark could not be measured, 130 after Ctrl-C, otherwise 0. An
        aim that is not met is a result and no failure.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.record == record.FOLDER and options.quick:
        parser.error("--record keeps results of full runs; name a folder to keep those of --quick")
    try:
        chosen = select(SUITE, options.only)
        if options.record or options.png:
            charts.require()
    except (UnknownBenchmarkError, charts.PicturesError) as error:
        parser.error(str(error))
    if options.list:
        print(as_list(chosen))
        return 0
    kept = _record(options) if options.record else None
    save = None if kept is None else partial(_save, kept)
    try:
        report = run(chosen, Effort(quick=options.quick), _tell, save)
    except KeyboardInterrupt:
        if kept is not None and kept.path.exists():
            _publish(kept, published=options.record == record.FOLDER)
        return _INTERRUPTED
    _show(report, options)
    if kept is not None:
        _publish(kept, published=options.record == record.FOLDER)
    return int(any(result.error is not None for result in report.results))


def _show(report: Report, options: argparse.Namespace) -> None:
    document = as_document(report)
    to_stdout = options.json == "-"
    # With JSON on standard output, the table makes room for it.
    print(as_table(report), file=sys.stderr if to_stdout else sys.stdout)
    if to_stdout:
        print(as_json(document))
    elif options.json is not None:
        Path(options.json).write_text(as_json(document) + "\n", encoding="utf-8")
    if options.png is not None:
        _tell_files(charts.draw(document, options.png))


def _save(kept: record.Record, report: Report) -> None:
    kept.save(as_document(report))
    _tell(f"    saved in {kept.path}")


def _record(options: argparse.Namespace) -> record.Record:
    return record.Record(
        options.record,
        describe(),
        part=bool(options.only),
        order=[benchmark.name for benchmark in SUITE],
    )


def _publish(kept: record.Record, *, published: bool) -> None:
    """Draws what is in the record now and, for the committed one, writes the page's tables."""
    pictures = PICTURES if published else kept.path.with_suffix("")
    _tell_files(charts.draw(record.load(kept.path), pictures))
    if published:
        page = subprocess.run(
            [sys.executable, ROOT / "docs" / "generate.py"], cwd=ROOT, text=True, check=False
        )
        if page.returncode:
            _tell("the pages could not be written; run: python docs/generate.py")
    _tell(f"recorded in {kept.path}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--list", action="store_true", help="list the benchmarks and their aims")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="run this one; may be repeated"
    )
    parser.add_argument("--quick", action="store_true", help="few samples: a look, not a result")
    parser.add_argument(
        "--json", type=_target, metavar="FILE", help="also write JSON; - for standard output"
    )
    parser.add_argument(
        "--png", type=_folder, metavar="FOLDER", help="also draw charts, as PNG files"
    )
    parser.add_argument(
        "--record",
        type=_folder,
        nargs="?",
        const=record.FOLDER,
        metavar="FOLDER",
        help="keep the results after each benchmark, in the place from which docs/benchmarks.md "
        "is made (or in FOLDER); with --only, replace this part of the newest record",
    )
    return parser


def _target(text: str) -> str:
    """A file that can be written: found out before minutes of work and not after them."""
    path = Path(text)
    if text != "-" and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        raise argparse.ArgumentTypeError(
            f"{text} cannot be written: no such folder, or no right to"
        )
    return text


def _folder(text: str) -> Path:
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"no folder can be made at {text}: {error}") from None
    if not os.access(path, os.W_OK):
        raise argparse.ArgumentTypeError(f"nothing can be written in {text}")
    return path


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _tell_files(paths: Sequence[Path]) -> None:
    for path in paths:
        _tell(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(main())
