"""Compares the published module tree with the sources of the IPU's TensorFlow.

Run it as ``python -m popdist_tf.compare CHECKOUT...`` on checkouts of the original's repositories
(TensorFlow, Keras, the addons), whose sources are parsed and never run. Each line is a difference:
a module, name, method or argument that popdist lacks, or arguments in another order. Names that
popdist refuses are listed with the reason. The exit code is 1 if a difference is found that has
no reason on the page of names.
"""

from __future__ import annotations

import argparse
import ast
import inspect
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from popdist.sdk.surface import load, published
from popdist.sdk.surface.answers import Placeholder
from popdist_tf.ipu.tree import MODULES, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from popdist.sdk.surface.vocabulary import Entry

_TREES = {
    "tensorflow/python/ipu": "",
    "keras/ipu": "keras",
    "ipu_tensorflow_addons": "addons",
}
"""Folders of the published sources, and the module below `popdist_tf.ipu` for each."""

_PRIVATE = (
    *("test", "tests", "test_utils", "docs", "single_ipu", "saved_model_tool"),
    *("als_optimizer_test_utils", "test_util", "tools", "util"),
)
"""Folders that hold no interface of programs."""


class Difference(NamedTuple):
    """One difference between the published sources and this package.

    Attributes:
        name: The published name, below ``tensorflow.python.ipu``.
        kind: ``module``, ``name``, ``method``, ``argument``, ``order``; ``refused`` or ``noted``
            where the page of names has a reason.
        detail: What is missing, or the reason.
    """

    name: str
    kind: str
    detail: str = ""


def differences(checkout: Path) -> Iterator[Difference]:
    """The differences to the sources in one checkout, in the order of its files.

    Args:
        checkout: The root of a repository of the original.

    Yields:
        Each difference once.
    """
    for folder, below in _TREES.items():
        root = checkout / folder
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            if set(parts) & set(_PRIVATE) or parts[-1].endswith(("_test", "_grad")):
                continue
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            module = ".".join([*([below] if below else []), *parts])
            yield from _module_differences(module, ast.parse(path.read_text(encoding="utf-8")))


def _module_differences(path: str, tree: ast.Module) -> Iterator[Difference]:
    public = [
        node
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_")
    ]
    if not public:
        return
    if path and path not in MODULES:
        yield _absent(path, "module", ", ".join(node.name for node in public))
        return
    module = import_module(f"{ROOT}.{path}".rstrip("."))
    for node in public:
        name = f"{path}.{node.name}".lstrip(".")
        try:
            ours = getattr(module, node.name)
        except AttributeError:
            ours = None
        if ours is None or isinstance(ours, Placeholder):
            yield _absent(name, "name")
            continue
        if isinstance(node, ast.ClassDef) and not isinstance(ours, type):
            yield from _function_differences(name, node, ours)
        elif isinstance(node, ast.ClassDef):
            for one in _with_private_bases(node, tree):
                yield from _class_differences(name, one, ours)
        else:
            yield from _signature_differences(name, node.args, ours)


def _function_differences(name: str, node: ast.ClassDef, ours: Any) -> Iterator[Difference]:
    """The differences of a class in whose place is a function."""
    methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
    for one in methods:
        if one.name == "__init__":
            yield from _signature_differences(name, one.args, ours)
    if lacked := [one.name for one in methods if not one.name.startswith("_")]:
        yield _explained(name, "method", ", ".join(dict.fromkeys(lacked)))


def _with_private_bases(node: ast.ClassDef, tree: ast.Module) -> Iterator[ast.ClassDef]:
    """A class, and those of its file that it derives from and that programs do not name."""
    yield node
    names = {base.id for base in node.bases if isinstance(base, ast.Name) and base.id[0] == "_"}
    for one in tree.body:
        if isinstance(one, ast.ClassDef) and one.name in names:
            yield from _with_private_bases(one, tree)


def _class_differences(name: str, node: ast.ClassDef, ours: Any) -> Iterator[Difference]:
    for member in node.body:
        if not isinstance(member, (ast.FunctionDef, ast.Assign)):
            continue
        if isinstance(member, ast.Assign):
            names = [one.id for one in member.targets if isinstance(one, ast.Name)]
        else:
            names = [member.name]
        for one in names:
            if one == "__init__":
                yield from _signature_differences(name, member.args, ours)  # type: ignore[union-attr]
            elif not one.startswith("_") and not _has(ours, one):
                yield _absent(f"{name}.{one}", "method")
            elif not one.startswith("_") and isinstance(member, ast.FunctionDef):
                held = inspect.getattr_static(ours, one, None)
                if isinstance(held, Placeholder):
                    yield _absent(f"{name}.{one}", "method")
                elif callable(held) and not _is_frameworks(held, member.args):
                    yield from _signature_differences(f"{name}.{one}", member.args, held)


def _is_frameworks(held: Any, args: ast.arguments) -> bool:
    """Whether a method is a framework's own, which it calls by position, whatever names it has."""
    module = getattr(held, "__module__", "")
    if module.startswith("popdist_tf"):
        return False
    count = sum(one.kind is one.POSITIONAL_OR_KEYWORD for one in _parameters(held))
    return count == len(args.posonlyargs) + len(args.args)


def _parameters(held: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(held).parameters.values())
    except (TypeError, ValueError):
        return []


def _has(ours: Any, name: str) -> bool:
    """Whether a class has an attribute, or its objects, as its source says."""
    if hasattr(ours, name) or name in getattr(ours, "__annotations__", ()):
        return True
    own = [kind for kind in ours.__mro__ if kind.__module__.startswith("popdist_tf.")]
    sources = "".join(map(inspect.getsource, own))
    return f"self.{name} = " in sources or f"self.{name}: " in sources


def _signature_differences(name: str, args: ast.arguments, ours: Any) -> Iterator[Difference]:
    held = {one.name: one for one in _parameters(ours)}
    if not held:
        return
    asked_in_order = [one.arg for one in (*args.posonlyargs, *args.args) if one.arg not in _SELF]
    takes_any = any(one.kind is one.VAR_KEYWORD for one in held.values())
    named = [one.name for one in held.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
    named = [one for one in named if one not in _SELF]
    asked = (*asked_in_order, *(one.arg for one in args.kwonlyargs))
    missing = [one for one in asked if one not in held and not takes_any]
    if missing:
        yield _explained(name, "argument", ", ".join(missing))
    if any(one.kind is one.VAR_POSITIONAL for one in held.values()):
        return
    common = [one for one in asked_in_order if one in held]
    if named[: len(common)] != common and not missing:
        found = f"({', '.join(asked_in_order)}), not ({', '.join(named)})"
        yield _explained(name, "order", found)


_SELF = ("self", "cls")


def _absent(name: str, kind: str, detail: str = "") -> Difference:
    entry = _entry(name)
    if entry is not None and entry.status == "refused":
        return Difference(name, "refused", entry.reason)
    owner = _entry(name.rpartition(".")[0]) if kind == "method" else None
    if owner is not None and _is_meant(owner):
        return Difference(name, "noted", owner.reason)
    return Difference(name, kind, detail)


def _explained(name: str, kind: str, detail: str) -> Difference:
    entry = _entry(name)
    if entry is not None and _is_meant(entry):
        return Difference(name, "noted", f"{detail}: {entry.reason}")
    return Difference(name, kind, detail)


def _is_meant(entry: Entry) -> bool:
    """Whether the remark on a name says that it lacks something, or takes other arguments."""
    return entry.reason.endswith((" left out.", " of its own."))


def _entry(name: str) -> Entry | None:
    """What the page of names says of a name below ``tensorflow.python.ipu``."""
    place = published(ROOT, name)
    return place and load(place[0]).find(place[1])


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the differences to the checkouts that are named on the command line.

    Args:
        arguments: The command line; None for this process's.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(prog="python -m popdist_tf.compare", description=__doc__)
    parser.add_argument("checkouts", nargs="+", type=Path, metavar="checkout")
    found: dict[Difference, None] = {}
    for checkout in parser.parse_args(arguments).checkouts:
        found |= dict.fromkeys(differences(checkout))
    kinds = dict.fromkeys(one.kind for one in found)
    for kind in sorted(kinds):
        held = [one for one in found if one.kind == kind]
        print(f"{kind}: {len(held)}")  # noqa: T201 - asked for
        for name, _, detail in held:
            print(f"  {name}" + (f": {detail}" if detail else ""))  # noqa: T201 - asked for
    return int(set(kinds) - {"refused", "noted"} != set())


if __name__ == "__main__":
    raise SystemExit(main())
