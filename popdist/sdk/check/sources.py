"""Finds and parses the sources that are to be checked."""

from __future__ import annotations

import ast
import os
import tokenize
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from popdist.errors import PopdistError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SKIPPED = {"__pycache__", "node_modules", "site-packages", "build", "dist"}


class SourceError(PopdistError, ValueError):
    """A source cannot be checked."""


class Source(NamedTuple):
    """One parsed file.

    Attributes:
        path: As the user would name it.
        tree: What it says.
    """

    path: str
    tree: ast.Module


def find(paths: Sequence[str]) -> list[str]:
    """The Python files among files and folders.

    Args:
        paths: Files, taken as they are, and folders, searched for ``*.py``. Hidden folders,
            environments and caches in them are left out.

    Returns:
        Files, each once.

    Raises:
        SourceError: A path does not exist, or a folder has no Python file.
    """
    found: dict[str, None] = {}
    for path in paths:
        if os.path.isdir(path):  # noqa: PTH112 - paths stay as they were given
            files = sorted(_walk(path))
            if not files:
                raise SourceError("PD453", "there is no Python file in this folder", value=path)
            found.update(dict.fromkeys(files))
        elif Path(path).exists():
            found[path] = None
        else:
            raise SourceError(
                "PD453",
                "there is no such file or folder",
                value=path,
                accepted="Python files, and folders with some",
            )
    return list(found)


def _walk(folder: str) -> Iterator[str]:
    for place, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if name not in _SKIPPED
            and not name.startswith(".")
            and not (Path(place) / name / "pyvenv.cfg").exists()
        ]
        yield from (str(Path(place) / name) for name in files if name.endswith(".py"))


def parse(path: str) -> Source:
    """Parses one file.

    Args:
        path: The file.

    Returns:
        The parsed file.

    Raises:
        SourceError: It cannot be read, or it is no Python of this interpreter's version.
    """
    try:
        with tokenize.open(path) as file:
            text = file.read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its string escapes, which are not asked for
            return Source(path, ast.parse(text, path))
    except SyntaxError as error:
        raise SourceError(
            "PD453",
            f"this is not Python as version {'.'.join(map(str, _version()))} knows it: {error.msg}",
            value=f"{path}:{error.lineno or 1}",
            hint="a program of Python 2 can be converted with 2to3 first"
            if "print" in (error.text or "")
            else None,
        ) from None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise SourceError("PD453", f"the file cannot be read: {error}", value=path) from None
    except RecursionError:
        raise SourceError("PD453", "the file nests too deeply to be parsed", value=path) from None


def _version() -> tuple[int, int]:
    import sys

    return sys.version_info[:2]
