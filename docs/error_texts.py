"""The texts by which errors begin, read from the sources that raise them."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_CODE = re.compile(r"PD\d{3}")
_LONGEST = 110


@cache
def texts() -> dict[str, list[str]]:
    """What errors say first.

    Returns:
        Texts by code; ``...`` stands where a value is put in.
    """
    found: dict[str, list[str]] = {}
    for path in sorted(ROOT.glob("popdist*/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                for code, what in zip(node.args, node.args[1:], strict=False):
                    text = _text(what)
                    if isinstance(code, ast.Constant) and _is_code(code.value) and text:
                        known = found.setdefault(str(code.value), [])
                        known += [text] if text not in known else []
    return found


def _is_code(value: object) -> bool:
    return isinstance(value, str) and _CODE.fullmatch(value) is not None


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        text = node.value if isinstance(node.value, str) else ""
    elif isinstance(node, ast.JoinedStr):
        text = "".join(_text(part) or "..." for part in node.values)
    else:
        return ""
    text = " ".join(text.split()) if not isinstance(node, ast.Constant) else text
    return text if len(text) <= _LONGEST else text[:_LONGEST].rpartition(" ")[0] + " ..."
