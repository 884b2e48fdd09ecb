"""Says which dotted names of imported modules a source uses, and where.

Names are followed through imports, assignments and constructors, as far as that is plain from the
source: ``opts = poptorch.Options()`` makes ``opts.foo`` a use of ``poptorch.Options.foo``. What
branches and calls of other functions do is not looked into.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from popdist.sdk.check.syntax import chain, flat, text

if TYPE_CHECKING:
    from collections.abc import Callable


class Use(NamedTuple):
    """One name of an imported module, as it stands in a source.

    Attributes:
        name: Absolute and dotted: ``poptorch.Options.deviceIterations``.
        line: Where.
        keywords: The names of the arguments, where it is called; None where it is not.
    """

    name: str
    line: int
    keywords: frozenset[str] | None = None


class Method(NamedTuple):
    """The last name of a chain that begins with something unknown: ``dataset.repeat``."""

    name: str
    line: int


class _Scope:
    """The names of a function, a class or a module, and what they stand for."""

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

    def visit_Module(self, node: ast.Module) -> None:
        """Visits a source: first what runs at once, then what its functions do."""
        self._body(node.body)

    def _body(self, statements: list[ast.stmt]) -> None:
        later: list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef] = []
        for statement in flat(statements):
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                for decorator in statement.decorator_list:
                    self.visit(decorator)
                self._scope.bind(statement.name, None)
                later.append(statement)
            else:
                self._head(statement)
        # Functions run after the names around them are bound.
        for statement in later:
            self._definition(statement)

    def _head(self, node: ast.stmt) -> None:
        """Visits a statement, without the statements in it, which `flat` gives by themselves."""
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
        if not isinstance(node, ast.ClassDef):
            self._parameters(node.args)
            if node.returns is not None:
                self.visit(node.returns)
        self._body(node.body)
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
            self.uses.append(Use(alias.name, node.lineno))
            top = alias.name.partition(".")[0]
            self._scope.bind(alias.asname or top, alias.name if alias.asname else top)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Visits ``from a import b``."""
        if node.level or node.module is None:
            return
        for alias in node.names:
            if alias.name == "*":
                self.uses.append(Use(node.module, node.lineno))
                for name in self._exports(node.module):
                    self._scope.bind(name, f"{node.module}.{name}")
                continue
            full = f"{node.module}.{alias.name}"
            self.uses.append(Use(full, node.lineno))
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
        """Visits ``with value as name``; most contexts give themselves."""
        for item in node.items:
            self.visit(item.context_expr)
            if item.optional_vars is not None:
                self._assign(item.optional_vars, item.context_expr)

    visit_AsyncWith = visit_With  # noqa: N815 - of ast

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        """Visits the head of a loop, whose variable is nothing known."""
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
            self.uses.append(Use(name, node.lineno))
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
        if not path.endswith("()"):  # an object of theirs is passed around
            self.uses.append(Use(path.replace("()", ""), line, keywords))

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
