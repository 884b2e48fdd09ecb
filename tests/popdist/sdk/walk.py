"""Follows a listed name into our packages, and uses a refused one."""

import ast
import inspect
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from unittest.mock import MagicMock

from popdist.sdk.surface.answers import Placeholder
from popdist_onnx import Builder
from popdist_torch.options.option_methods import OptionMethod
from popdist_torch.options.storage import OptionsDict


class Absent(Exception):  # noqa: N818 - says what is the case
    """A name does not resolve."""


def resolve(ours, name):
    """What a dotted name below a module of ours is.

    Names below a class count where the class has them, where one of its objects has them (it is
    made without arguments), or where it declares them as fields.
    """
    here = import_module(ours)
    module = ours
    for part in name.split("."):
        if isinstance(here, Placeholder):
            return here
        module = f"{module}.{part}"
        if inspect.ismodule(here):
            is_package = hasattr(here, "__path__")
            if not hasattr(here, part) and is_package and find_spec(module) is not None:
                import_module(module)
            if not hasattr(here, part):
                raise Absent(name)
            here = getattr(here, part)
        else:
            here = _member(here, part, name)
    return here


def _member(owner, part, name):
    # A property of the class itself says nothing of what is below it.
    held = inspect.getattr_static(owner, part, None)
    if hasattr(owner, part) and not (inspect.isclass(owner) and isinstance(held, property)):
        return getattr(owner, part)
    if inspect.isclass(owner):
        made = _made(owner)
        if made is not None and hasattr(made, part):
            return getattr(made, part)
        if issubclass(owner, OptionsDict) and part in option_keys(owner):
            return part
        if held is not None or any(
            part in vars(one).get("__annotations__", {}) for one in owner.__mro__
        ):
            return held
    elif isinstance(owner, OptionsDict) and part in option_keys(type(owner)):
        return part
    raise Absent(name)


@cache
def option_keys(kind):
    """The keys that options have from the start, and those that one of their methods creates."""
    methods = [inspect.getattr_static(kind, name) for name in dir(kind)]
    keys = {method._key for method in methods if isinstance(method, OptionMethod)}
    for one in kind.__mro__[:-1]:
        for call in ast.walk(ast.parse(inspect.getsource(one))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                if call.func.attr == "createOrSet":
                    keys |= {keyword.arg for keyword in call.keywords} - {None}
                elif call.func.attr == "put" and isinstance(call.args[0], ast.Constant):
                    keys.add(call.args[0].value)
    return keys


@cache
def _made(owner):
    try:
        return owner()
    except Exception:  # noqa: BLE001 - whatever a class says to no arguments
        return None


def use(thing):
    """Uses what a refused name gives, as a program would, and gives the error that this raises."""
    if isinstance(thing, Placeholder):
        return _raised(thing)
    if isinstance(thing, property):
        return _raised(thing.fget, MagicMock())
    # Operators of a builder look at their inputs and attributes first.
    calls = [[["x"] * inputs, *[2] * others] for inputs in (1, 2) for others in range(3)]
    packed = [["x"], [2], 2, 2, Builder().createSubgraphBuilder()]
    for arguments in ([MagicMock() for _ in range(_required(thing))], *calls, packed):
        error = _raised(thing, *arguments)
        if isinstance(error, NotImplementedError):
            break
    return error


def _raised(thing, *arguments):
    try:
        thing(*arguments)
    except Exception as error:  # noqa: BLE001 - the caller looks at it
        return error
    return None


def _required(thing):
    return sum(
        one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) and one.default is one.empty
        for one in inspect.signature(thing).parameters.values()
    )
