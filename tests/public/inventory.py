"""The folders of checkouts that hold programs of the SDK, and that no manifest has a row for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from popdist.sdk.finder import ALIASES, BESIDE
from popdist.sdk.surface.absent import ABSENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tests.public.manifest import Program

_OTHERS = {"tensorflow", "keras"}  # which the SDK extends
_MODULES = {name.partition(".")[0] for name in (*ALIASES, *BESIDE, *(one.name for one in ABSENT))}
_NAMES = "|".join(sorted({*_MODULES, r"optimum\.graphcore", r"tensorflow\.python\.ipu"} - _OTHERS))
_IMPORT = re.compile(rf"^\s*(?:import|from)\s+(?:{_NAMES})\b", re.MULTILINE)


def without_a_row(programs: Iterable[Program], sources: Path) -> Iterator[str]:
    """Yields folders whose files import a module of the SDK, and that are in no row's folder.

    Args:
        programs: The rows.
        sources: The folder of checkouts.
    """
    rows: dict[str, set[str]] = {}
    for program in programs:
        rows.setdefault(f"{program.repository}/{program.tag}", set()).add(program.place)
    for name, places in rows.items():
        root = sources / name
        files = [path for path in root.rglob("*.py") if not _is_test(path.relative_to(root))]
        found = {path.parent for path in files if _IMPORT.search(path.read_text(errors="replace"))}
        for folder in sorted(one.relative_to(root).as_posix() for one in found):
            if not any(f"{folder}/".startswith(f"{place}/") for place in places):
                yield f"{name}/{folder}"


def _is_test(path: Path) -> bool:
    return any(re.match(r"(unit_?)?tests?(_|$)|conftest", part) for part in path.parts) or (
        path.stem.endswith("_test")
    )
