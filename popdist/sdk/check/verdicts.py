"""Judges the names of sources, and prints the findings as lines for people or as JSON.

A name is judged by the lists of the SDK's modules and of popdist, and by the table of idioms.
"""

from __future__ import annotations

import ast
import json
import pkgutil
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import popdist
from popdist.nearest import did_you_mean
from popdist.sdk.check.idioms import Idiom, idiom_of
from popdist.sdk.check.resolve import (
    Resolver,
    Source,
    SourceError,
    Use,
    chain,
    find,
    guarded_lines,
    parse,
    text,
)
from popdist.sdk.contrib import MODULES
from popdist.sdk.finder import ALIASES, BESIDE, TOOLS
from popdist.sdk.removed import is_given
from popdist.sdk.sources import sources_of
from popdist.sdk.surface import load
from popdist.sdk.surface.absent import ABSENT
from popdist.sdk.version1 import are_of_version1

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


Status = Literal["works", "accepted without effect", "refused", "unknown", "edit", "look"]

Interface = Literal["1", "beside ipu", "2"]
"""The ``tensorflow`` of a program: TensorFlow 1's interface (`popdist.sdk.version1`), version 2
with names of TensorFlow 1 beside ``tensorflow.python.ipu`` (`popdist.sdk.tensorflow1`), or 2."""

_SAME = {"popdist.poptorch.Options": "poptorch.Options"}
"""Classes of popdist with the members of a class of the SDK."""

_BLOCKED = (
    "useIpuId",
    "replicationFactor",
    "Distributed.disable",
    "Distributed.setEnvVarNames",
    "Distributed.configureProcessId",
)
"""Methods that raise on `popdist.poptorch.Options`, as published."""

_COMPLETE = {
    "popart.Builder",
    "popart.SessionOptions",
    "poptorch.Options",
    "popdist.poptorch.Options",
    "tensorflow.python.ipu.config.IPUConfig",
}
"""Classes whose members, and the members of their parts, are all listed."""

_GRAPHS = {
    f"tensorflow.{name}"
    for name in (
        "InteractiveSession",
        "Session",
        "placeholder",
        "placeholder_with_default",
        "sparse_placeholder",
    )
}
"""Names of TensorFlow 1 that are found, but need eager execution turned off."""

_NO_EAGER = "tf.compat.v1.disable_eager_execution() at the start of the program"

_FLUENT = {"poptorch.Options", "popdist.poptorch.Options"}
"""Classes whose methods, and whose parts' methods, return their object."""

_OF_PARTS = frozenset(
    {"checkIsFrozen", "createOrSet", "deleteIfExists", "exists", "set", "toDict", "update"}
)
"""Members of these classes that their parts have too."""


class Verdict(NamedTuple):
    """What is to be said of a name.

    Attributes:
        name: The name that it is about, which may be one above what was asked for.
        status: How it fares: one of the lists' words; ``unknown``; ``edit`` where today's
            libraries refuse it, and ``look`` where that depends on versions or on the program.
        reason: Why.
        instead: What to write instead.
    """

    name: str
    status: Status
    reason: str = ""
    instead: str = ""


def judge(
    name: str, keywords: frozenset[str] | None = None, interface: Interface = "2"
) -> Verdict | None:
    """The verdict on one use of a dotted name (or ``.name`` for a method), or None.

    ``keywords`` has the argument names of a call, None without a call.
    """
    if interface == "1" and f"{name}.".startswith("tensorflow.contrib."):
        return _of_contrib(name)
    if is_given(name):
        return Verdict(name, "works", "found, as the SDK's names give it again")
    idiom = idiom_of(name, keywords)
    if idiom is not None:
        return _of_idiom(name, idiom, interface)
    canonical = _canonical(name)
    if canonical != name:
        verdict = judge(canonical)
        return None if verdict is None else verdict._replace(name=name)
    for entry in ABSENT:
        if name == entry.name or name.startswith(f"{entry.name}."):
            return Verdict(name, "refused", entry.reason, entry.instead)
    module = next((sdk for sdk in _modules() if name == sdk or name.startswith(f"{sdk}.")), None)
    return None if module is None else _listed(name, module)


def _canonical(name: str) -> str:
    """The SDK's name for a name beside its modules, such as ``tensorflow.keras.ipu``."""
    homes = {mine: sdk for sdk, mine in ALIASES.items()}
    for beside, mine in BESIDE.items():
        sdk = homes.get(mine.rpartition(".")[0])
        if sdk is not None and f"{name}.".startswith(f"{beside}."):
            return f"{sdk}.{mine.rpartition('.')[2]}{name[len(beside) :]}"
    return name


_OF_VERSION1 = "found, as the SDK's names give this program TensorFlow 1's interface"


def _of_idiom(name: str, idiom: Idiom, interface: Interface) -> Verdict:
    """The verdict on a name that today's libraries refuse."""
    shown = name if not idiom.keyword else f"{name}({idiom.keyword}=...)"
    if interface == "1" and idiom.since == "TensorFlow 2.0":
        return Verdict(shown, "works", _OF_VERSION1)
    if interface != "2" and name.startswith("tensorflow.keras.optimizers."):
        return Verdict(shown, "works", "found, as the SDK's names give the optimizers of that time")
    if interface == "beside ipu" and idiom.is_found_beside_ipu:
        if name in _GRAPHS:
            return Verdict(shown, "look", "it needs graphs, which TensorFlow 1 ran", _NO_EAGER)
        return Verdict(shown, "works", "found in tf.compat.v1 beside tensorflow.python.ipu")
    status: Status = "edit" if idiom.certain else "look"
    edit = idiom.edit + name[len(idiom.name) :] if idiom.is_moved else idiom.edit
    return Verdict(shown, status, f"refused since {idiom.since}", edit)


def _of_contrib(name: str) -> Verdict:
    """The verdict on a name of ``tensorflow.contrib`` in a program of TensorFlow 1."""
    owner, below = "", name.split(".")[2:]
    while below and f"{owner}.{below[0]}".lstrip(".") in MODULES:
        owner = f"{owner}.{below.pop(0)}".lstrip(".")
    if not below or below[0] in MODULES[owner]:
        return Verdict(name, "works", _OF_VERSION1)
    full = f"tensorflow.contrib.{owner}".rstrip(".")
    return Verdict(f"{full}.{below[0]}", "unknown", f"{full} has no {below[0]!r}")


def _modules() -> tuple[str, ...]:
    return (*ALIASES, "popdist")


def constructs(name: str) -> str | None:
    """The class that a call of a dotted name returns, with ``()`` appended, or None.

    See `popdist.sdk.check.resolve.Resolver`.
    """
    plain = name.replace("()", "")
    if plain in _members():
        return f"{plain}()" if plain.rpartition(".")[2][:1].isupper() else None
    owner = plain.rpartition(".")[0]
    fluent = any(owner == root or owner.startswith(f"{root}.") for root in _FLUENT)
    return f"{owner}()" if fluent and "()" in name else None


def exports(module: str) -> tuple[str, ...]:
    """The names that ``from module import *`` binds; none for modules outside of the SDK."""
    return tuple(sorted(_members().get(module, ())))


def _listed(name: str, module: str) -> Verdict | None:
    entries = _entries()
    members = _members()
    end = name.rpartition(".")[2]
    if end.startswith("__"):
        return None
    if name in entries:
        return entries[name]
    owner = name.rpartition(".")[0]
    of_part = end in _OF_PARTS and owner.startswith(tuple(f"{root}." for root in _FLUENT))
    if of_part or name in members:  # or a module, or a class of which only the members are listed
        return Verdict(name, "works")
    while owner and owner not in entries and owner not in members:
        owner = owner.rpartition(".")[0]
    above = entries.get(owner)
    if above is not None and above.status == "refused":
        return Verdict(name, "refused", above.reason, above.instead)
    is_module = owner == module or owner.rpartition(".")[2].islower()
    is_complete = any(owner == one or owner.startswith(f"{one}.") for one in _COMPLETE)
    if (is_complete or is_module) and owner in members:
        last = name[len(owner) + 1 :].partition(".")[0]
        return Verdict(
            f"{owner}.{last}",
            "unknown",
            f"{owner} has no {last!r}",
            did_you_mean(last, members.get(owner, ()), shown="{!r}") or "",
        )
    return above


@lru_cache(maxsize=1)
def _entries() -> dict[str, Verdict]:
    """Every listed name by its absolute name."""
    found: dict[str, Verdict] = {}
    for sdk in ALIASES:
        found[sdk] = Verdict(sdk, "works")
        for entry in load(sdk).entries:
            full = f"{sdk}.{entry.name}"
            is_open = entry.status == "works" and entry.instead  # it depends on the start
            status: Status = "look" if is_open else entry.status
            found[full] = Verdict(full, status, entry.reason, entry.instead)
    for full in (*_popdist_names(), *_option_names()):
        found.setdefault(full, Verdict(full, "works"))
    for door, sdk in _SAME.items():
        for full, verdict in list(found.items()):
            if full.startswith(f"{sdk}."):
                name = door + full[len(sdk) :]
                found[name] = verdict._replace(name=name)
    for blocked in _BLOCKED:
        name = f"popdist.poptorch.Options.{blocked}"
        found[name] = Verdict(name, "refused", "poprun decides this", "poprun's own options")
    return found


@lru_cache(maxsize=1)
def _members() -> dict[str, set[str]]:
    """The listed names directly below each listed or implied name."""
    found: dict[str, set[str]] = {}
    for name in _entries():
        above, _, last = name.rpartition(".")
        while above:
            found.setdefault(above, set()).add(last)
            above, _, last = above.rpartition(".")
    return found


def _popdist_names() -> list[str]:
    """The names that popdist publishes, read from the source, as imports would load frameworks."""
    modules = (one.name for one in pkgutil.iter_modules(popdist.__path__))
    names = ["popdist", *(f"popdist.{name}" for name in (*popdist.__all__, *modules))]
    for door in ("popart", "poptorch", "tensorflow"):
        tree = ast.parse((Path(popdist.__path__[0]) / f"{door}.py").read_text(encoding="utf-8"))
        names.append(f"popdist.{door}")
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names += [f"popdist.{door}.{name}" for name in ast.literal_eval(node.value)]
    return names


def _option_names() -> list[str]:
    """The public methods of popdist's groups of options, which have more than those of the SDK."""
    names = []
    for path in Path(popdist.__path__[0]).parent.glob("popdist_torch/options/*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            body = node.body if isinstance(node, ast.ClassDef) else []
            assigned = [one for one in body if isinstance(one, ast.Assign)]
            for place in (one.value for one in assigned if chain(one.targets[0]) == "path"):
                methods = [one.name for one in body if isinstance(one, ast.FunctionDef)]
                public = [name for name in methods if name[0] != "_"]
                names += [f"poptorch.Options.{text(place)}{name}" for name in public]
    return names


BLOCKING = ("refused", "unknown", "edit")
"""The statuses of names that stop a program from running."""

_WORDS = {"edit": "to be changed", "look": "perhaps to be changed"}


class Finding(NamedTuple):
    """One name at one place.

    Attributes:
        path: The file.
        line: The line.
        verdict: What is to be said of it.
    """

    path: str
    line: int
    verdict: Verdict


def examine(source: Source) -> list[Finding]:
    """Checks one source; each name is listed once per line, in the order of the lines."""
    uses = _uses(source)
    return _judged(source, uses, _interface((tree for _, tree in sources_of(source.path)), uses))


def examine_program(path: str) -> list[Finding]:
    """Checks a program: its file, and the files beside it that it imports.

    Raises:
        SourceError: The program's own file cannot be read or parsed.
    """
    beside = (Source(*one) for one in sources_of(path) if Path(one[0]) != Path(path))
    sources = [parse(path), *beside]
    uses = [_uses(source) for source in sources]
    trees = [source.tree for source in sources]
    interface = _interface(trees, [use for group in uses for use in group])
    judged = (_judged(*pair, interface) for pair in zip(sources, uses, strict=True))
    return [finding for group in judged for finding in group]


def _uses(source: Source) -> list[Use]:
    resolver = Resolver(constructs, exports)
    resolver.visit(source.tree)
    return [*resolver.uses, *(Use(f".{one.name}", one.line) for one in resolver.methods)]


def _interface(trees: Iterable[ast.Module], uses: Sequence[Use]) -> Interface:
    if are_of_version1(trees):
        return "1"
    beside_ipu = any(f"{use.name}.".startswith("tensorflow.python.ipu.") for use in uses)
    return "beside ipu" if beside_ipu else "2"


def _judged(source: Source, uses: Sequence[Use], interface: Interface) -> list[Finding]:
    guarded = guarded_lines(source.tree)
    early = _imported_first(source.tree)
    found: dict[Finding, None] = {}
    for use in uses:
        verdict = judge(use.name, use.keywords, interface)
        if verdict is None:
            continue
        if verdict.status in BLOCKING and (excuse := _excuse(use, verdict, guarded, early)):
            reason = f"{verdict.reason.rstrip('.')}; {excuse}"
            verdict = verdict._replace(status="look", reason=reason)
        found[Finding(source.path, use.line, verdict)] = None
    return sorted(found, key=lambda finding: (finding.line, finding.verdict.name))


def _imported_first(tree: ast.Module) -> set[str]:
    """The packages that a source imports outside of its functions."""
    found, pending = set(), [*tree.body]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            found |= {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            pending += [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.stmt)]
    return found


def _excuse(use: Use, verdict: Verdict, guarded: set[int], early: set[str]) -> str:
    """Why a program may run although a name does not work; empty where it does not run."""
    if use.line in guarded:
        return "the program catches that"
    if use.name in TOOLS:
        return "the import succeeds, and using it raises an error"
    top = use.name.partition(".")[0]
    # A function that imports a framework by itself is for runs that need it.
    is_late = verdict.status == "edit" and not use.name.startswith(".") and top not in early
    if use.in_function and (top in TOOLS or is_late):
        return "the function may not be called"
    if verdict.status == "unknown" and use.in_branch:
        return "the branch may not run"  # the SDK does not have the name either
    return ""


def check(paths: Sequence[str], *, as_json: bool) -> int:
    """Checks files, with the files beside them that they import, and folders.

    The exit code is 2 where a file could not be checked, else 1 where a name is refused, unknown or
    needs an edit, else 0.

    Raises:
        SourceError: A path does not exist.
    """
    findings: dict[Finding, None] = {}
    errors: list[SourceError] = []
    programs = {path for path in paths if Path(path).is_file()}
    for path in find(paths):
        found = _found(path, with_imports=path in programs)
        if isinstance(found, SourceError):
            errors.append(found)
        else:
            findings.update(dict.fromkeys(found))
    listed = list(findings)
    print(_json(listed, errors) if as_json else _text(listed))  # noqa: T201 - asked for
    for error in errors:
        print(f"popdist-sdk: {error}", file=sys.stderr)  # noqa: T201 - for people
    blocks = any(finding.verdict.status in BLOCKING for finding in findings)
    return 2 if errors else int(blocks)


def _found(path: str, *, with_imports: bool) -> list[Finding] | SourceError:
    try:
        return examine_program(path) if with_imports else examine(parse(path))
    except SourceError as error:
        return error


def _text(findings: Sequence[Finding]) -> str:
    lines = []
    for path, line, verdict in findings:
        text = f"{path}:{line}: {verdict.name}: {_WORDS.get(verdict.status, verdict.status)}"
        if verdict.reason:
            text += f": {verdict.reason.rstrip('.')}"
        if verdict.instead:
            text += f"; instead: {verdict.instead}"
        lines.append(text)
    counts = _counts(findings)
    total = ", ".join(f"{count} {_WORDS.get(word, word)}" for word, count in counts.items())
    return "\n".join([*lines, f"names: {total}" if total else "no name of the SDK is used"])


def _counts(findings: Sequence[Finding]) -> dict[str, int]:
    """The number of different names with each status."""
    order = ("works", "accepted without effect", "refused", "unknown", "edit", "look")
    names = {(finding.verdict.status, finding.verdict.name) for finding in findings}
    counts = {word: sum(status == word for status, _ in names) for word in order}
    return {word: count for word, count in counts.items() if count}


def _json(findings: Sequence[Finding], errors: list[SourceError]) -> str:
    return json.dumps(
        {
            "names": [
                {"file": path, "line": line, **verdict._asdict()}
                for path, line, verdict in findings
            ],
            "counts": _counts(findings),
            "errors": [{"what": error.what, "where": error.value} for error in errors],
        },
        indent=2,
    )
