"""Shapes of Python's syntax that the look at a source asks for again and again."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def guarded_lines(tree: ast.Module) -> set[int]:
    """The lines of imports that may fail: the program catches that.

    Args:
        tree: A parsed source.

    Returns:
        Line numbers.
    """
    return {
        inner.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Try) and any(map(_catches_imports, node.handlers))
        for statement in node.body
        for inner in ast.walk(statement)
        if isinstance(inner, (ast.Import, ast.ImportFrom))
    }


def _catches_imports(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    kinds = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
    return any(chain(one) in kinds for one in caught)


def text(node: ast.expr) -> str | None:
    """What a literal text says; None for what is none."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def chain(node: ast.expr) -> str | None:
    """``self.opts`` as a text; None for what is no chain of names."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        above = chain(node.value)
        return f"{above}.{node.attr}" if above is not None else None
    return None


def flat(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements in their order, those of branches and loops too, as if all of them ran."""
    for statement in statements:
        yield statement
        for field in ("body", "handlers", "orelse", "finalbody", "cases"):
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                break
            for inner in getattr(statement, field, []):
                is_branch = isinstance(inner, (ast.ExceptHandler, ast.match_case))
                yield from flat(inner.body if is_branch else [inner])
