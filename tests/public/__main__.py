"""``python -m tests.public SOURCES [WORDS...]``: runs public programs or, with --suites, tests."""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.public import inventory, manifest, page, prediction, suites, verdicts
from tests.public.environments import python_of
from tests.public.running import ROOT, run

if TYPE_CHECKING:
    from tests.public.manifest import Manifest, Program

BUILD = ROOT / "build" / "public"


def examine(program: Program, file: Manifest, sources: Path, patience: float = 1) -> dict[str, Any]:
    """Runs a program and judges it.

    Args:
        program: The program.
        file: Its manifest.
        sources: The folder of checkouts.
        patience: Factor of the limits of time, for a busy machine.

    Returns:
        Its record.
    """
    runs = []
    program = replace(program, limit=round(patience * program.limit))
    if program.command:
        python, room = _python(program, file), _room(program)
        for instances in (1, 2) if program.divides else (1,):
            runs.append(run(program, sources, python, room / str(instances), instances))
            if runs[-1].code != 0:
                break
    record = verdicts.judge(program, runs)
    if record["verdict"] == "trains":
        record["compared"] = compare(program, file, sources)
    record["predicted"] = prediction.predict(program, sources)
    record["measured"] = date.today().isoformat()  # noqa: DTZ011 - a day of the machine
    record["commit"] = _commit()
    return record


def compare(program: Program, file: Manifest, sources: Path, patience: float = 1) -> dict[str, Any]:
    """Compares a job of two instances with its program alone, as a user would.

    Args:
        program: The program.
        file: Its manifest.
        sources: The folder of checkouts.
        patience: Factor of the limits of time.

    Returns:
        What `verdicts.compared` says.
    """
    program = replace(program, limit=round(2 * patience * program.limit))  # it runs twice
    python, room = _python(program, file), _room(program) / "compared"
    result = room / "compared.json"
    options = ("--compare-alone=2", f"--json={result}")
    return verdicts.compared(run(program, sources, python, room, 2, options), result)


def _python(program: Program, file: Manifest) -> Path:
    packages = file.environments.get(program.environment, ())
    return python_of(program.environment, packages, BUILD / "environments")


def _room(program: Program) -> Path:
    return BUILD / "runs" / program.key.replace("/", "-").replace(" ", "-")


def _commit() -> str:
    words = ["git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def _compare_again(program: Program, file: Manifest, asked: argparse.Namespace) -> None:
    """Compares a program that trains, and adds the result to its record."""
    if page.recorded(file.name).get(program.key, {}).get("verdict") != "trains":
        return
    found = compare(program, file, asked.sources.resolve(), asked.patience)
    print(f"{program.key}: {found}", flush=True)  # noqa: T201
    seen = page.recorded(file.name)
    seen[program.key]["compared"] = found
    page.keep(file.name, seen)


def main() -> int:
    """Runs the command; the exit code is 1 where a verdict is worse than the recorded one."""
    parser = argparse.ArgumentParser(prog="python -m tests.public", description=__doc__)
    parser.add_argument("sources", type=Path, help="folder with OWNER/REPOSITORY/TAG")
    parser.add_argument("words", nargs="*", help="run the programs whose key has one of these")
    parser.add_argument("--patience", type=float, default=1, help="factor of the limits of time")
    parser.add_argument("--compare", action="store_true", help="only compare what trains")
    parser.add_argument("--suites", action="store_true", help="run test suites, not programs")
    parser.add_argument("--missing", action="store_true", help="list programs that have no row")
    asked = parser.parse_args()
    if asked.missing:
        rows = [program for file in manifest.read_all() for program in file.programs]
        every = inventory.without_a_row(rows, asked.sources)
        found = [name for name in every if all(word in name for word in asked.words)]
        print("\n".join(found))  # noqa: T201
        return int(bool(found))
    if asked.suites:
        return suites.main(asked.sources.resolve(), asked.words, BUILD, asked.patience)
    worse = 0
    for file in manifest.read_all():
        for program in file.programs:
            if not (asked.sources / program.repository / program.tag).is_dir():
                continue
            if asked.words and not any(word in program.key for word in asked.words):
                continue
            if asked.compare:
                _compare_again(program, file, asked)
                continue
            record = examine(program, file, asked.sources.resolve(), asked.patience)
            print(f"{program.key}: {record['verdict']}: {record['reason']}", flush=True)  # noqa: T201
            seen = page.recorded(file.name)  # another run may have written it meanwhile
            before = seen.get(program.key, {}).get("verdict", "")
            worse += before in page.GOOD and record["verdict"] not in page.GOOD
            if record["verdict"] != "not run" or not before:  # a busy machine changes no result
                seen[program.key] = record
                page.keep(file.name, seen)
    page.PAGE.write_text(page.text())
    return int(worse > 0)


if __name__ == "__main__":
    sys.exit(main())
