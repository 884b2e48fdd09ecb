"""Finds sources, and resolves the dotted names of imported modules in each source.

Names are followed through imports, assignments and constructors where the source is explicit:
``opts = poptorch.Options()`` makes ``opts.foo`` a use of ``poptorch.Options.foo``. Branches and
calls of other functions are not evaluated.
"""

from __future__ import annotations

import ast
import os
import tokenize
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from popdist.errors import PopdistError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def guarded_lines(tree: ast.Module) -> set[int]:
    """The lines of imports whose failure the program catches."""
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
    """The value of a string literal; None for other expressions."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def chain(node: ast.expr) -> str | None:
    """``self.opts`` as a text; None for an expression that is not a chain of names."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        above = chain(node.value)
        return f"{above}.{node.attr}" if above is not None else None
    return None


def flat(statements: list[ast.stmt], *, in_branch: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """Statements in order, also those of branches and loops, as if all of them ran.

    With each statement goes whether it is in a branch, which may not run.
    """
    for statement in statements:
        yield statement, in_branch
        branches = in_branch or (isinstance(statement, ast.If) and not _is_main(statement.test))
        for field in ("body", "handlers", "orelse", "finalbody", "cases"):
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                break
            for inner in getattr(statement, field, []):
                if isinstance(inner, (ast.ExceptHandler, ast.match_case)):
                    yield from flat(inner.body, in_branch=True)
                else:
                    yield from flat([inner], in_branch=branches)


def _is_main(test: ast.expr) -> bool:
    """Whether a branch is ``if __name__ == "__main__"``, which runs in a program."""
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(test))


class Use(NamedTuple):
    """One name of an imported module, as it stands in a source.

    Attributes:
        name: Absolute and dotted: ``poptorch.Options.deviceIterations``.
        line: Where.
        keywords: The names of the arguments, where it is called; None where it is not.
        in_function: Whether it is in a function, which may never be called.
        in_branch: Whether it is in a branch of its function, which may not run.
    """

    name: str
    line: int
    keywords: frozenset[str] | None = None
    in_function: bool = False
    in_branch: bool = False


class Method(NamedTuple):
    """The last name of a chain whose first name is unknown: ``dataset.repeat``."""

    name: str
    line: int


class _Scope:
    """The names of a function, a class or a module, with their values."""

    def __init__(self, above: _Scope | None) -> None:
        self._above = above
        self._known: dict[str, str | None] = {}

    def bind(self, name: str, path: str | None) -> None:
        if "." in name and self._above is not None:
            self._above.bind(name, path)  # `self.opts` is for all methods
        else:
            self._known[name] = path

    def find(self, name: str) -> str | None:
        if name in self._known:
            return self._known[name]
        return self._above.find(name) if self._above is not None else None


class Resolver(ast.NodeVisitor):
    """Collects the uses in one source.

    Args:
        constructs: Says what a call of a dotted name gives: the name of a class with ``()`` behind
            it for an object of that class, or None. Members of objects are named below that.
        exports: Says what ``from module import *`` binds.
    """

    def __init__(
        self,
        constructs: Callable[[str], str | None],
        exports: Callable[[str], tuple[str, ...]],
    ) -> None:
        self.uses: list[Use] = []
        self.methods: list[Method] = []
        self._constructs = constructs
        self._exports = exports
        self._scope = _Scope(None)
        self._depth = 0
        self._in_branch = False

    def visit_Module(self, node: ast.Module) -> None:
        """Visits a source: first the top level, then the bodies of functions."""
        self._body(node.body)

    def _body(self, statements: list[ast.stmt]) -> None:
        later: list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef] = []
        outer = self._in_branch
        for statement, self._in_branch in flat(statements):
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                for decorator in statement.decorator_list:
                    self.visit(decorator)
                self._scope.bind(statement.name, None)
                later.append(statement)
            else:
                self._head(statement)
        # Functions run after the names around them are bound.
        self._in_branch = outer
        for definition in later:
            self._definition(definition)

    def _head(self, node: ast.stmt) -> None:
        """Visits a statement without its inner statements, which `flat` yields separately."""
        if isinstance(node, (ast.If, ast.While)):
            self.visit(node.test)
        elif isinstance(node, ast.Match):
            self.visit(node.subject)
        elif isinstance(node, ast.Try):
            for handler in node.handlers:
                if handler.type is not None:
                    self.visit(handler.type)
        else:
            self.visit(node)

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        if isinstance(node, ast.ClassDef):
            for base in [*node.bases, *(keyword.value for keyword in node.keywords)]:
                self.visit(base)
        outer, self._scope = self._scope, _Scope(self._scope)
        is_function = not isinstance(node, ast.ClassDef)
        if not isinstance(node, ast.ClassDef):
            self._parameters(node.args)
            if node.returns is not None:
                self.visit(node.returns)
        self._depth += is_function
        self._body(node.body)
        self._depth -= is_function
        self._scope = outer

    def _parameters(self, parameters: ast.arguments) -> None:
        for default in [*parameters.defaults, *filter(None, parameters.kw_defaults)]:
            self.visit(default)
        named = [*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs]
        for one in [*named, *filter(None, (parameters.vararg, parameters.kwarg))]:
            path = None
            if one.annotation is not None:
                self.visit(one.annotation)
                # `opts: poptorch.Options`
                annotated = self._path(one.annotation)
                path = self._constructs(annotated) if annotated else None
            self._scope.bind(one.arg, path)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Visits a lambda, whose parameters hide names around it."""
        outer, self._scope = self._scope, _Scope(self._scope)
        self._parameters(node.args)
        self.visit(node.body)
        self._scope = outer

    def visit_Import(self, node: ast.Import) -> None:
        """Visits ``import a.b`` and ``import a.b as c``."""
        for alias in node.names:
            self._add(alias.name, node.lineno)
            top = alias.name.partition(".")[0]
            self._scope.bind(alias.asname or top, alias.name if alias.asname else top)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Visits ``from a import b``."""
        if node.level or node.module is None:
            return
        for alias in node.names:
            if alias.name == "*":
                self._add(node.module, node.lineno)
                for name in self._exports(node.module):
                    self._scope.bind(name, f"{node.module}.{name}")
                continue
            full = f"{node.module}.{alias.name}"
            self._add(full, node.lineno)
            self._scope.bind(alias.asname or alias.name, full)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Visits an assignment, which may give a name to a module, a class or an object."""
        self.visit(node.value)
        for target in node.targets:
            self._assign(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Visits an assignment with a type."""
        self.visit(node.annotation)
        if node.value is not None:
            self.visit(node.value)
            self._assign(node.target, node.value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        """Visits ``name := value``."""
        self.visit(node.value)
        self._assign(node.target, node.value)

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        """Visits ``with value as name``; most contexts return themselves."""
        for item in node.items:
            self.visit(item.context_expr)
            if item.optional_vars is not None:
                self._assign(item.optional_vars, item.context_expr)

    visit_AsyncWith = visit_With  # noqa: N815 - of ast

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        """Visits the head of a loop, whose variable is unknown."""
        self.visit(node.iter)
        self._assign(node.target, None)

    visit_AsyncFor = visit_For  # noqa: N815 - of ast

    def _assign(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            values: list[ast.expr | None] = [None] * len(target.elts)
            if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
                values = list(value.elts)
            for one, own in zip(target.elts, values, strict=True):
                self._assign(one, own)
            return
        name = chain(target)
        if name is None:
            self.visit(target)
            return
        if isinstance(target, ast.Attribute):
            self.visit(target)  # `opts.foo = 1` uses `Options.foo`
        # `poptorch = None` is what programs say where an import failed.
        if not (isinstance(value, ast.Constant) and value.value is None):
            self._scope.bind(name, None if value is None else self._path(value))

    def visit_Call(self, node: ast.Call) -> None:
        """Visits a call."""
        path = self._path(node.func)
        if path is None:
            self.visit(node.func)
        else:
            keywords = frozenset(one.arg or "**" for one in node.keywords)
            self._use(path, node.func.end_lineno or node.lineno, keywords)
            self._below(node.func)
        if path == "importlib.import_module" and node.args and (name := text(node.args[0])):
            self._add(name, node.lineno)
        for argument in [*node.args, *(one.value for one in node.keywords)]:
            self.visit(argument)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Visits ``value.name``."""
        path = self._path(node)
        line = node.end_lineno or node.lineno
        if path is not None:
            self._use(path, line)
            self._below(node)
        else:
            self.methods.append(Method(node.attr, line))
            self.visit(node.value)

    def visit_Name(self, node: ast.Name) -> None:
        """Visits a name that stands alone, such as a base class."""
        path = self._scope.find(node.id)
        if path is not None and isinstance(node.ctx, ast.Load):
            self._use(path, node.lineno)

    def _use(self, path: str, line: int, keywords: frozenset[str] | None = None) -> None:
        if not path.endswith("()"):  # an object is passed on
            self._add(path.replace("()", ""), line, keywords)

    def _add(self, name: str, line: int, keywords: frozenset[str] | None = None) -> None:
        self.uses.append(Use(name, line, keywords, self._depth > 0, self._in_branch))

    def _below(self, node: ast.expr) -> None:
        """Visits the calls inside of a chain: ``Options()`` in ``Options().foo(2)``."""
        while isinstance(node, ast.Attribute):
            node = node.value
        if isinstance(node, ast.Call):
            self.visit(node)

    def _path(self, node: ast.expr) -> str | None:
        """The dotted name that an expression stands for."""
        if isinstance(node, ast.Call):
            called = self._path(node.func)
            if called == "importlib.import_module" and node.args:
                return text(node.args[0])
            return self._constructs(called) if called is not None else None
        if isinstance(node, ast.Name):
            return self._scope.find(node.id)
        if isinstance(node, ast.Attribute):
            name = chain(node)
            if name is not None and (bound := self._scope.find(name)) is not None:
                return bound  # `self.opts`
            above = self._path(node.value)
            return f"{above}.{node.attr}" if above is not None else None
        return None


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
    """The Python files among files and folders, each once.

    Folders are searched for ``*.py``. Hidden folders, environments and caches are left out.

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

    Raises:
        SourceError: The file cannot be read, or is not Python of this interpreter's version.
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
