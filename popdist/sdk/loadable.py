"""``popdist-sdk custom-ops``: the loadable files that programs with compiled operators look for.

A program of the SDK compiles its custom operators for an IPU into a shared library, and loads that
before it calls `poptorch.custom_op`. On a host the operators are functions in Python, so an empty
library is enough. It is written without a compiler: an ELF file with one segment and no symbols.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from popdist.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

MARK = b"popdist: operators are host functions\0"
"""What the file has in place of code; a file without it is never replaced."""

_HEADER = struct.Struct("<4s5B7xHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<QQ")
_SYMBOL = bytes(24)
_HASH = struct.pack("<IIII", 1, 1, 0, 0)  # one bucket, one symbol
_PAGE = 0x1000
_LOAD, _DYNAMIC = 1, 2
_READ, _WRITE = 4, 2
_TABLES = {"hash": 4, "strings": 5, "symbols": 6}  # DT_HASH, DT_STRTAB, DT_SYMTAB
_SIZES = {10: len(MARK) + 1, 11: len(_SYMBOL)}  # DT_STRSZ, DT_SYMENT


def write(paths: Sequence[str]) -> list[Path]:
    """Writes an empty shared library at each path, with its folders.

    Args:
        paths: Files that programs load.

    Returns:
        The files.

    Raises:
        UsageError: The path names a file of another origin, or cannot be written.
    """
    return [_write(Path(path)) for path in paths]


def _write(path: Path) -> Path:
    try:
        if path.exists() and MARK not in path.read_bytes():
            raise UsageError(
                "PD366",
                "this file exists, and popdist-sdk custom-ops did not write it",
                value=str(path),
                hint="remove it, or give the path that the program loads",
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(library(_machine()))
    except OSError as error:
        raise UsageError(
            "PD366", "a library cannot be written", value=str(path), hint=str(error)
        ) from error
    path.chmod(0o755)
    return path


def _machine() -> int:
    """The kind of machine in the header of this Python's own file."""
    with open(sys.executable, "rb") as file:  # noqa: PTH123 - 20 bytes of a large file
        head = file.read(20)
    return int.from_bytes(head[18:20], "little") if head.startswith(b"\x7fELF") else 62


def library(machine: int) -> bytes:
    """The bytes of an empty shared library.

    Args:
        machine: ELF's number of the kind of machine, such as 62 for x86-64.
    """
    start = _HEADER.size + 2 * _SEGMENT.size
    parts = {"symbols": _SYMBOL, "hash": _HASH, "strings": b"\0" + MARK}
    places = {}
    for name, content in parts.items():
        places[name] = start
        start += len(content)
    start += -start % 8
    entries = [(tag, places[name]) for name, tag in _TABLES.items()]
    entries += [*_SIZES.items(), (0, 0)]
    dynamic = b"".join(_ENTRY.pack(*entry) for entry in entries)
    size = start + len(dynamic)
    header = _HEADER.pack(
        *(b"\x7fELF", 2, 1, 1, 0, 0),  # 64 bits, little-endian
        *(3, machine, 1, 0, _HEADER.size, 0, 0),  # a shared object without an entry or sections
        *(_HEADER.size, _SEGMENT.size, 2, 0, 0, 0),
    )
    load = _SEGMENT.pack(_LOAD, _READ | _WRITE, 0, 0, 0, size, size, _PAGE)
    listed = (start, start, start, len(dynamic), len(dynamic), 8)
    table = _SEGMENT.pack(_DYNAMIC, _READ | _WRITE, *listed)
    body = header + load + table + b"".join(parts.values())
    return body.ljust(start, b"\0") + dynamic
