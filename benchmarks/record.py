"""Records: results of full runs that are committed, one file for each machine and day.

A run is saved after each of its benchmarks, so that nothing is lost when it ends early, and a part
of the suite that runs again replaces its part of the record.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.document import FORMAT, as_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.document import Document

FOLDER = Path(__file__).resolve().parent / "results"
"""Where the committed records are."""

_SAME = ("cpu", "cores", "memory_gib", "python", "mpirun", "versions")
"""Facts of a machine that must be equal for two results to stand in one record."""


def slug(machine: dict[str, Any]) -> str:
    """The name of a machine's folder.

    Args:
        machine: Its facts.

    Returns:
        Processor, cores and memory, in letters that suit a path.
    """
    words = f"{machine['cpu']} {machine['cores']} cores {machine['memory_gib']:.0f} GiB"
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


class Record:
    """The file that a run goes to.

    Args:
        folder: The folder of all records.
        machine: The facts about this machine.
        part: Whether only a part of the suite runs, which then goes into the newest record of the
            same machine and versions; otherwise only one of today is continued.
        order: The names of all benchmarks, in the order of the suite.
    """

    def __init__(
        self, folder: Path, machine: dict[str, Any], *, part: bool, order: Sequence[str]
    ) -> None:
        self._order = list(order)
        place = folder / slug(machine)
        today = time.strftime("%Y-%m-%d", time.gmtime())
        known = records(place)
        same = [path for path in known if _same(load(path)["machine"], machine)]
        fitting = [path for path in same if part or path.stem.startswith(today)]
        self.path = fitting[-1] if fitting else _unused(place, today, known)
        self._document: Document | None = load(self.path) if fitting else None

    def save(self, document: Document) -> Document:
        """Puts results into the record, at once and whole.

        Args:
            document: The results of this run so far.

        Returns:
            The whole record.
        """
        merged = document if self._document is None else merge(self._document, document)
        merged = _ordered(merged, self._order)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".part")
        fresh.write_text(as_json(merged) + "\n", encoding="utf-8")
        fresh.replace(self.path)
        return merged


def records(place: Path) -> list[Path]:
    """The records of a machine.

    Args:
        place: Its folder.

    Returns:
        The files, the oldest first.
    """
    return sorted(place.glob("*.json"), key=_age)


def load(path: Path) -> Document:
    """Reads a record.

    Args:
        path: The file.

    Returns:
        The results.

    Raises:
        ValueError: The file is no record, or of another form.
    """
    document: Document = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"{path} is no record of form {FORMAT}")
    return document


def newest(folder: Path = FOLDER) -> tuple[Path, Document] | None:
    """The newest record of any machine.

    Args:
        folder: The folder of all records.

    Returns:
        Its file and its content; None where there is none.
    """
    paths = [path for place in sorted(folder.glob("*")) for path in records(place)]
    known = [(path, load(path)) for path in paths]
    return max(known, key=lambda one: measured(one[1]), default=None)


def measured(document: Document) -> str:
    """When the last part of a record was measured.

    Args:
        document: The record.

    Returns:
        The time in UTC (ISO 8601); an empty text where nothing was.
    """
    return max((one["measured"] or "" for one in document["benchmarks"]), default="")


def merge(old: Document, new: Document) -> Document:
    """Replaces parts of a record.

    Args:
        old: The record.
        new: Newer results.

    Returns:
        The newer results, and the older ones of the benchmarks that did not run again, or failed
        when they did.
    """
    had = {one["name"] for one in old["benchmarks"] if one["error"] is None}
    failed = {one["name"] for one in new["benchmarks"] if one["error"] is not None}
    replaced = {one["name"] for one in new["benchmarks"]} - (failed & had)
    return {
        **new,
        "quick": old["quick"] or new["quick"],
        **{
            key: [one for one in old[key] if one[name] not in replaced]
            + [one for one in new[key] if one[name] in replaced]
            for key, name in (("benchmarks", "name"), ("rows", "benchmark"))
        },
    }


def _ordered(document: Document, order: list[str]) -> Document:
    def place(name: str) -> int:
        return order.index(name) if name in order else len(order)

    return {
        **document,
        "benchmarks": sorted(document["benchmarks"], key=lambda one: place(one["name"])),
        "rows": sorted(document["rows"], key=lambda row: place(row["benchmark"])),
    }


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(_fact(one, fact) == _fact(other, fact) for fact in _SAME)


def _fact(machine: dict[str, Any], name: str) -> Any:
    """A fact; versions without the part that a build of Horovod has for its patches.

    The patches are those of the commit, which each benchmark states.
    """
    fact = machine.get(name)
    if isinstance(fact, dict):
        return {package: str(version).partition("+popdist")[0] for package, version in fact.items()}
    return fact


def _unused(place: Path, today: str, known: list[Path]) -> Path:
    names = {path.stem for path in known}
    candidates = [today, *(f"{today}.{number}" for number in range(2, 1000))]
    return place / f"{next(name for name in candidates if name not in names)}.json"


def _age(path: Path) -> tuple[str, int]:
    day, _, number = path.stem.partition(".")
    return day, int(number or 1)
