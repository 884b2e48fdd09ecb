"""Options from text: a file of calls, or JSON. Both are parsed, and nothing in them is executed.

A file holds what a program would write behind ``options.``: calls with literal arguments, members
of enumerations, torch's types, and objects that options take (strategies, location settings). The
original runs such files as Python; this reader knows no other names, imports nothing and calls
nothing but methods of options and those constructors.
"""

from __future__ import annotations

import ast
import json
from enum import Enum
from inspect import getattr_static
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from popdist.errors import PopdistError
from popdist_torch.errors import ConfigFileError, OptionError
from popdist_torch.options import enums, strategies
from popdist_torch.options.locations import TensorLocationSettings

if TYPE_CHECKING:
    from popdist_torch.options.options import Options
    from popdist_torch.options.storage import OptionsDict

GROUPS = ("Training", "Precision", "Distributed", "TensorLocations", "Jit", "_Popart")
"""Names under which the groups of options are reached."""

_ENUMS: dict[str, type[Enum]] = {
    name: kind
    for name, kind in vars(enums).items()
    if isinstance(kind, type) and issubclass(kind, Enum)
}
_CONSTRUCTORS: dict[str, Any] = {
    "TensorLocationSettings": TensorLocationSettings,
    **{
        name: getattr(strategies, name)
        for name in strategies.__all__
        if name not in ("AutoStage", "ExecutionStrategy")
    },
}


def load(options: Options, path: str | Path) -> None:
    """Makes the calls that a file lists.

    Args:
        options: What the calls are made on.
        path: The file; ``#`` starts a comment.

    Raises:
        ConfigFileError: It is no list of calls, or a call is not accepted; names line and file.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigFileError("PD300", f"cannot read {path}", value=str(error)) from error
    try:
        statements = ast.parse(text, filename=str(path)).body
    except SyntaxError as error:
        raise _wrong(path, error.lineno, f"invalid syntax: {error.msg}") from error
    line = 0
    try:
        for statement in statements:
            line = statement.lineno
            _call(options, statement.value if isinstance(statement, ast.Expr) else statement)
    except (PopdistError, TypeError, ValueError, LookupError) as error:
        raise _wrong(path, line, str(error)) from error


def load_json(options: Options, text: str) -> None:
    """Makes the calls that a JSON object lists.

    Args:
        options: What the calls are made on.
        text: An object: paths such as ``"Training.gradientAccumulation"`` with one argument, or a
            list of them. Texts such as ``"OutputMode.All"`` stand for members of enumerations.

    Raises:
        OptionError: It is no such object, or names no method of options.
    """
    try:
        calls = json.loads(text)
    except ValueError as error:
        raise OptionError("PD300", "options are not valid JSON", value=str(error)) from error
    if not isinstance(calls, dict):
        raise OptionError("PD300", "options in JSON are an object of calls", value=calls)
    for path, value in calls.items():
        *groups, name = path.split(".")
        receiver: OptionsDict = options
        for group in groups:
            receiver = _group(receiver, group, options)
        arguments = value if isinstance(value, list) else [value]
        _method(receiver, name)(*map(_from_json, arguments))


def _wrong(path: str | Path, line: int | None, what: str) -> ConfigFileError:
    return ConfigFileError(
        "PD300",
        f"line {line} of {path}: {what}",
        accepted="one call a line without the name of the options, such as "
        "Training.gradientAccumulation(4)",
    )


def _call(options: Options, node: ast.AST) -> Any:
    if not isinstance(node, ast.Call):
        raise OptionError("PD300", "this is no call", value=ast.unparse(node))
    receiver: OptionsDict
    if isinstance(node.func, ast.Name):
        receiver, name = options, node.func.id
    elif isinstance(node.func, ast.Attribute):
        receiver, name = _receiver(options, node.func.value), node.func.attr
    else:
        raise OptionError("PD300", "this is no call of options", value=ast.unparse(node))
    return _method(receiver, name)(*_arguments(node)[0], **_arguments(node)[1])


def _receiver(options: Options, node: ast.AST) -> OptionsDict:
    if isinstance(node, ast.Name):
        return _group(options, node.id, options)
    return _call(options, node)  # type: ignore[no-any-return]  # a chain of calls


def _group(receiver: OptionsDict, name: str, options: Options) -> OptionsDict:
    if receiver is not options or name not in GROUPS:
        raise OptionError("PD300", "no such group of options", value=name, accepted=str(GROUPS))
    return getattr(options, name)  # type: ignore[no-any-return]


def _method(receiver: OptionsDict, name: str) -> Any:
    if not hasattr(getattr_static(receiver, name, None), "effect"):
        raise OptionError(
            "PD300", f"{type(receiver).__name__} has no such method", value=receiver.path + name
        )
    return getattr(receiver, name)


def _arguments(node: ast.Call) -> tuple[list[Any], dict[str, Any]]:
    keywords = {word.arg: _value(word.value) for word in node.keywords if word.arg is not None}
    return [_value(argument) for argument in node.args], keywords


def _value(node: ast.AST) -> Any:
    if isinstance(node, ast.List | ast.Tuple):
        items = [_value(item) for item in node.elts]
        return items if isinstance(node, ast.List) else tuple(items)
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {_value(key): _value(value) for key, value in pairs if key is not None}
    if isinstance(node, ast.Call):
        return _constructed(node)
    if isinstance(node, ast.Name | ast.Attribute):
        return _named(ast.unparse(node))
    return ast.literal_eval(node)  # refuses all but literals


def _constructed(node: ast.Call) -> Any:
    args, kwargs = _arguments(node)
    if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
        made, name = _constructed(node.func.value), node.func.attr
        method = None if name.startswith("_") else getattr(made, name, None)
    else:
        name = ast.unparse(node.func).removeprefix("poptorch.")
        method = _CONSTRUCTORS.get(name)
    if not callable(method):
        raise OptionError("PD300", "this is nothing that options take", value=name)
    return method(*args, **kwargs)


def _named(text: str) -> Any:
    path = text.removeprefix("poptorch.")
    kind, _, member = path.partition(".")
    if kind in _ENUMS and member in _ENUMS[kind].__members__:
        return _ENUMS[kind][member]
    if kind == "torch" and isinstance(getattr(torch, member, None), torch.dtype):
        return getattr(torch, member)
    raise OptionError(
        "PD300",
        "this is no value",
        value=text,
        accepted="literals, members of poptorch's enumerations, torch's types",
    )


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if isinstance(value, str) and value.removeprefix("poptorch.").partition(".")[0] in _ENUMS:
        return _named(value)
    return value
