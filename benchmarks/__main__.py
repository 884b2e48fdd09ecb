"""The command line: ``python -m benchmarks [--list] [--only NAME] [--quick] [--json FILE]``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Effort, UnknownBenchmarkError, run, select
from benchmarks.report import as_json, as_list, as_table
from benchmarks.suite import SUITE

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program.

    Args:
        arguments: The command line; None for that of this process.

    Returns:
        The exit code: 1 where a benchmark could not be measured, otherwise 0. An aim that is not
        met is a result and no failure.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        chosen = select(SUITE, options.only)
    except UnknownBenchmarkError as error:
        parser.error(str(error))
    if options.list:
        print(as_list(chosen))
        return 0
    report = run(chosen, Effort(quick=options.quick), _tell)
    to_stdout = options.json == "-"
    # With JSON on standard output, the table makes room for it.
    print(as_table(report), file=sys.stderr if to_stdout else sys.stdout)
    if to_stdout:
        print(as_json(report))
    elif options.json is not None:
        Path(options.json).write_text(as_json(report) + "\n", encoding="utf-8")
    return int(any(result.error is not None for result in report.results))


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
    return parser


def _target(text: str) -> str:
    """A file that can be written: found out before minutes of work and not after them."""
    path = Path(text)
    if text != "-" and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        raise argparse.ArgumentTypeError(
            f"{text} cannot be written: no such folder, or no right to"
        )
    return text


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
