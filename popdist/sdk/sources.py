"""The sources of a program: its file, and the files beside it that it imports, never run."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_FILES = 200


def sources_of(program: str) -> Iterator[tuple[str, ast.Module]]:
    """The path and the tree of each source of a program, as far as they are below its folder.

    Files that cannot be read or parsed are left out.

    Args:
        program: The path of the program.
    """
    start = Path(program)
    pending, known = [start], {start}
    while pending and len(known) <= _MOST_FILES:
        path = pending.pop()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of its string escapes, which are not asked for
                tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue
        yield str(path), tree
        beside = dict.fromkeys(_imported(tree, path.parent, start.parent))
        pending += [one for one in beside if one not in known]
        known.update(beside)


def _imported(tree: ast.Module, folder: Path, root: Path) -> Iterator[Path]:
    for node in ast.walk(tree):
        names, places = [], (folder, root)
        if isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [module, *(f"{module}.{one.name}".lstrip(".") for one in node.names)]
            if node.level:
                places = ([folder, *folder.parents][min(node.level - 1, len(folder.parents))],) * 2
        for name in filter(None, names):
            for place in dict.fromkeys(places):
                path = place.joinpath(*name.split("."))
                for file in (path.with_suffix(".py"), path / "__init__.py"):
                    if file.is_file():
                        yield file
