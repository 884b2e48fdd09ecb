"""Test suites that others published: each file runs in one pytest process under the SDK's names."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import date
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from popdist.sdk import loadable
from tests.public import manifest, page
from tests.public.environments import python_of
from tests.public.outcomes.suite_outcomes import OUTCOMES
from tests.public.running import ROOT, STANDINS, call, environment_of

PLUGIN = Path(__file__).parent / "outcomes"
PAGE = ROOT / "docs" / "public-tests.md"
NAME = "suites"
KINDS = ("passed", "failed", "device", "skipped")

_HEAD = """# Public test suites

This page lists test suites that were published for the IPU SDK, and how their files fare,
unchanged, on this project. `python -m tests.public --suites folder` runs them and writes the page,
from checkouts in `folder/OWNER/REPOSITORY/TAG`. Each file runs in one pytest process under the
SDK's names, and Horovod's own files in two processes under three launchers, where a test passes if
it passes on both.

"Device" counts failing tests of what only the device, its compiler or an older tool has, for the
reasons that are listed, and "skipped" counts tests that the suite itself skips. The last table of
each suite counts the other failures by their first words.
"""


@dataclass(frozen=True)
class Suite:
    """The test files of one public repository.

    Attributes:
        repository: Owner and name.
        tag: The tag or branch.
        folder: The folder of the repository that is copied; the suite starts there.
        files: Patterns of the test files, relative to the folder.
        copied: Patterns of the names of files that are copied, where the folder also has the
            implementation that the suite tests; none where all files are.
        left: Patterns of files that are not run, with the reason of each.
        device: Regular expressions of failures of what only the device, its compiler or an older
            tool has, with the reason of each. They are searched in ``FILE::TEST: MESSAGE``.
        command: The words after ``python``.
        launcher: The command that starts each file in several processes; empty for one process.
        path: Folders below the copy that packages are imported from.
        standins: Folders below ``tests/public/standins`` with modules for helpers of the suite that
            are not published.
        packages: The packages of the suite's environment, on top of the project's.
        beside: Another checkout that the suite imports, as ``OWNER/REPOSITORY/TAG``.
        loadable: The compiled operators that the suite loads, below the folders ``published``
            and ``beside``: `popdist-sdk custom-ops` writes them.
        variables: More variables of the environment.
        limit: Seconds for one file.
    """

    repository: str
    tag: str
    folder: str
    files: tuple[str, ...]
    copied: tuple[str, ...] = ()
    left: dict[str, str] = field(default_factory=dict)
    device: dict[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ("-m", "popdist.sdk", "-m", "pytest", "-q", "--timeout=60")
    launcher: str = ""
    path: tuple[str, ...] = ()
    standins: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    beside: str = ""
    loadable: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    limit: int = 300

    @property
    def key(self) -> str:
        """The beginning of the suite's records."""
        under = f" under {self.launcher}" if self.launcher else ""
        return f"{self.repository}@{self.tag}/{self.folder}{under}"

    def paths(self, sources: Path) -> list[str]:
        """The test files in a folder of checkouts."""
        folder = sources / self.repository / self.tag / self.folder
        found = {path for pattern in self.files for path in folder.glob(pattern)}
        names = sorted(str(path.relative_to(folder)) for path in found)
        return [name for name in names if not any(fnmatch(name, left) for left in self.left)]

    def ignored(self, folder: str, names: list[str]) -> list[str]:
        """The files of a folder that are not copied, as `shutil.copytree` asks for them."""
        files = [name for name in names if self.copied and not Path(folder, name).is_dir()]
        return [name for name in files if not any(fnmatch(name, kind) for kind in self.copied)]


def read_all() -> list[Suite]:
    """The suites of the manifest: one for each of the ``launchers`` of a row."""
    rows = manifest.content_of(manifest.SUITES)["suites"]
    settings = [manifest.with_tuples(row) for row in rows]
    every = [(row.pop("launchers", ("",)), row) for row in settings]
    return [Suite(**row, launcher=one) for launchers, row in every for one in launchers]


def run(suite: Suite, name: str, sources: Path, build: Path, patience: float = 1) -> dict[str, Any]:
    """Runs one file of a suite in a fresh copy of the suite's folder.

    Args:
        suite: The suite.
        name: The file, relative to the suite's folder.
        sources: The folder of checkouts.
        build: A folder for environments and copies.
        patience: Factor of the limit of time.

    Returns:
        Its record: the numbers of tests by outcome, ``seconds``, ``reasons`` of the device with
        their counts, and ``failures`` with the reason of each.
    """
    room = build / "suites" / re.sub(r"\W+", "-", f"{suite.key}/{name}")
    shutil.rmtree(room, ignore_errors=True)
    copy = room / "published"  # not "copy": it may be a package, and shadow the module
    folder = sources / suite.repository / suite.tag / suite.folder
    shutil.copytree(folder, copy, symlinks=True, ignore=suite.ignored)
    (copy / "pytest.ini").touch()  # otherwise pytest reads this project's settings
    if suite.beside:
        shutil.copytree(sources / suite.beside, room / "beside", symlinks=True)
    loadable.write([str(room / one) for one in suite.loadable])
    python = python_of("suite" if suite.packages else "", suite.packages, build / "environments")
    (room / "home").mkdir()
    path = [
        PLUGIN,
        *(STANDINS / one for one in suite.standins),
        *(copy / one for one in suite.path),
        *([room / "beside"] if suite.beside else ()),
    ]
    environment = environment_of(python, room / "home", path)
    environment.update(suite.variables)
    environment[OUTCOMES] = str(room / "outcomes")
    words = [*suite.launcher.split(), str(python), *suite.command]
    words += ["-p", "suite_outcomes", "-p", "no:cacheprovider", name]
    begin = time.monotonic()
    with (room / "output.txt").open("w") as output:
        code = call(words, copy, environment, output, round(suite.limit * patience))
    ranks = [path.read_text().splitlines() for path in sorted(room.glob("outcomes*"))]
    record = judge(suite, [line for lines in ranks for line in lines] + unequal(ranks))
    if not any(record[kind] for kind in KINDS) and code != 5:
        record["failed"] = 1
        record["failures"] = {name: f"no test began, exit code {code}"}
    record["seconds"] = round(time.monotonic() - begin)
    record["measured"] = date.today().isoformat()  # noqa: DTZ011 - a day of the machine
    return record


def unequal(ranks: list[list[str]]) -> list[str]:
    """A failure for each test that has not the same outcome on all ranks."""
    found: dict[str, set[tuple[int, str]]] = {}
    for rank, lines in enumerate(ranks):
        for test, (outcome, _) in _last(lines).items():
            found.setdefault(test, set()).add((rank, outcome))
    return [
        json.dumps([test, "failed", f"by rank: {', '.join(one for _, one in sorted(outcomes))}"])
        for test, outcomes in found.items()
        if len(outcomes) < len(ranks) or len({outcome for _, outcome in outcomes}) > 1
    ]


def _last(lines: list[str]) -> dict[str, tuple[str, str]]:
    """The outcome of each test with its reason; a failure is not undone."""
    last: dict[str, tuple[str, str]] = {}
    for test, outcome, reason in map(json.loads, lines):
        is_settled = last.get(test, ("",))[0] == "failed" and outcome != "started"
        if not is_settled or outcome == "failed":
            last[test] = (outcome, reason)
    return last


def judge(suite: Suite, lines: list[str]) -> dict[str, Any]:
    """Counts the outcomes that the plugin wrote."""
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    failures: dict[str, str] = {}
    for test, (outcome, reason) in _last(lines).items():
        kind = outcome
        if outcome in ("failed", "started"):
            kind = "failed"
            for pattern, why in suite.device.items():
                if re.search(pattern, f"{test}: {reason}"):
                    kind = "device"
                    reasons[why] += 1
                    break
            else:
                failures[test] = reason[:160]
        counts[kind] += 1
    return {**{kind: counts[kind] for kind in KINDS}, "reasons": reasons, "failures": failures}


def main(sources: Path, words: list[str], build: Path, patience: float) -> int:
    """Runs the files whose key has one of the words; 1 where fewer tests of a file pass."""
    fewer = 0
    for suite in read_all():
        if not (sources / suite.repository / suite.tag).is_dir():
            continue
        for name in suite.paths(sources):
            key = f"{suite.key}/{name}"
            if words and not any(word in key for word in words):
                continue
            record = run(suite, name, sources, build, patience)
            print(f"{key}: {_counts([record])}, {record['seconds']} s", flush=True)  # noqa: T201
            seen = page.recorded(NAME)
            fewer += record["passed"] < seen.get(key, {}).get("passed", 0)
            page.keep(NAME, {**seen, key: record})
    PAGE.write_text(text())
    return int(fewer > 0)


def _counts(records: list[dict[str, Any]]) -> str:
    return ", ".join(f"{sum(record[kind] for record in records)} {kind}" for kind in KINDS)


def text() -> str:
    """The page."""
    seen = page.recorded(NAME)
    lines = [_HEAD]
    for suite in read_all():
        own = {key: record for key, record in seen.items() if key.startswith(f"{suite.key}/")}
        place = "" if suite.folder == "." else f", {suite.folder}"
        under = f", under `{suite.launcher}`" if suite.launcher else ""
        lines += [f"## {suite.repository}, {suite.tag}{place}{under}", ""]
        lines += [f"{len(own)} files: {_counts(list(own.values()))}.", ""]
        rows = [
            (
                f"`{key.removeprefix(suite.key + '/').removeprefix('tests/')}`",
                *(record[kind] for kind in (*KINDS, "seconds")),
            )
            for key, record in sorted(own.items())
        ]
        lines += _table(("File", "Passed", "Failed", "Device", "Skipped", "Seconds"), rows)
        lines += _table(("Not run", "Reason"), [(f"`{k}`", why) for k, why in suite.left.items()])
        device: Counter[str] = Counter()
        failed: Counter[str] = Counter()
        for record in own.values():
            device.update(record["reasons"])
            starts = (reason[:80].replace("`", "") for reason in record["failures"].values())
            failed.update(f"`{start}`" for start in starts)
        lines += _table(("Reason under Device", "Tests"), device.most_common())
        lines += _table(("Failure", "Tests"), failed.most_common())
    return "\n".join(lines)


def _table(heads: tuple[str, ...], rows: list[Any]) -> list[str]:
    if not rows:
        return []
    cells = [[str(cell).replace("|", "/") for cell in row] for row in (heads, *rows)]
    rule = ["---:" if isinstance(cell, int) else "---" for cell in rows[0]]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return [lines[0], f"|{'|'.join(rule)}|", *lines[1:], ""]


if __name__ == "__main__":
    sys.exit(PAGE.write_text(text()) == 0)
