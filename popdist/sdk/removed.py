"""Names that programs of the SDK's time use, and that Python, numpy and torch have removed since.

The SDK ran on Python 3.6 to 3.10, numpy 1.19 to 1.23 and torch up to 2.0. Where its names are
enabled, modules that lack a name of that time get it again: the same object under its name of
today. Names that a module has do not change, so newer numpy keeps its own ``bool``.

`popdist.sdk.finder` loads this file by its path, so it imports nothing of popdist.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

_TYPES = "bool int float complex object str"
_COLLECTIONS = """
Callable Container Hashable Iterable Iterator ItemsView KeysView Mapping MappingView MutableMapping
MutableSequence MutableSet Sequence Set Sized ValuesView
"""

NAMES: dict[str, dict[str, str]] = {
    "collections": {name: f"collections.abc:{name}" for name in _COLLECTIONS.split()},
    "fractions": {"gcd": "math:gcd"},
    "time": {"clock": "time:perf_counter"},
    "numpy": {
        **{name: f"builtins:{name}" for name in _TYPES.split()},
        "unicode": "builtins:str",
        "long": "builtins:int",
        "alltrue": "numpy:all",
        "complex_": "numpy:complex128",
        "cumproduct": "numpy:cumprod",
        "float_": "numpy:float64",
        "Inf": "numpy:inf",
        "infty": "numpy:inf",
        "NaN": "numpy:nan",
        "PINF": "numpy:inf",
        "product": "numpy:prod",
        "sometrue": "numpy:any",
        "string_": "numpy:bytes_",
        "unicode_": "numpy:str_",
    },
}
"""By module: the name of that time, and the module and attribute that it has today."""


def _shortened_argspec(module: "ModuleType") -> None:
    from collections import namedtuple

    ArgSpec = namedtuple("ArgSpec", "args varargs keywords defaults")  # noqa: PYI024 - as it was

    def getargspec(func: "Any") -> "Any":
        return ArgSpec(*module.getfullargspec(func)[:4])

    vars(module).setdefault("getargspec", getargspec)


def _suffix_of_libraries(module: "ModuleType") -> None:
    known = module.get_config_vars

    def get_config_vars(*names: str) -> "Any":
        held = known()  # takes milliseconds, so not before a program asks
        held.setdefault("SO", held.get("EXT_SUFFIX"))
        return known(*names)

    module.get_config_vars = get_config_vars  # type: ignore[attr-defined]


class _FieldTypes:
    """The types of a class's fields, which may be names of classes that come later."""

    def __get__(self, _instance: object, kind: type) -> "dict[str, Any]":
        return dict(kind.__annotations__)


def _types_of_fields(module: "ModuleType") -> None:
    meta = module.NamedTupleMeta
    known = meta.__new__

    def made(*given: "Any", **named: "Any") -> "Any":
        kind = known(*given, **named)
        kind._field_types = _FieldTypes()  # noqa: SLF001 - as it was named
        return kind

    meta.__new__ = made


def _names_of_python_2(module: "ModuleType") -> None:
    from collections import abc

    six = type(module)("torch._six")
    vars(six).update(
        container_abcs=abc, string_classes=(str, bytes), int_classes=int, inf=module.inf,
        nan=module.nan,
    )  # fmt: skip
    if "_six" not in vars(module):
        vars(module)["_six"] = sys.modules["torch._six"] = six


def _home_of_downloads(module: "ModuleType") -> None:
    from importlib.util import find_spec

    name = f"{module.__name__}.utils"
    if find_spec(name) is None:
        utils = sys.modules[name] = type(module)(name)
        hub = sys.modules["torch.hub"]
        vars(utils)["load_state_dict_from_url"] = vars(hub)["load_state_dict_from_url"]
        vars(module)["utils"] = utils


def _samplers_of_data(module: "ModuleType") -> None:
    # `Sampler` took the data, and did nothing with them: samplers of programs call
    # ``super().__init__(data_source)``. Now it has no constructor of its own.
    sampler = module.Sampler
    if "__init__" in vars(sampler):
        return

    def __init__(self: "Any", *args: "Any", **kwargs: "Any") -> None:  # noqa: N807 - becomes the method
        following = super(sampler, self).__init__
        is_last = getattr(following, "__objclass__", None) is object
        if is_last and len(args) + len(kwargs) == 1 and kwargs.keys() <= {"data_source"}:
            following()
        else:
            following(*args, **kwargs)

    sampler.__init__ = __init__


def _talk_of_schedulers(module: "ModuleType") -> None:
    # Schedulers took ``verbose``, their last argument, and printed each change of a rate; now they
    # print nothing.
    from functools import wraps
    from inspect import signature

    def quiet(known: "Callable[..., None]", most: int) -> "Callable[..., None]":
        @wraps(known)
        def __init__(self: "Any", *args: "Any", verbose: "Any" = None, **kwargs: "Any") -> None:  # noqa: N807 - as above
            del verbose
            known(self, *(args[:-1] if len(args) == most else args), **kwargs)

        return __init__

    for kind in vars(module).values():
        known = vars(kind).get("__init__") if isinstance(kind, type) else None
        if known is None:
            continue
        names = signature(known).parameters
        if "optimizer" in names and "verbose" not in names:
            kind.__init__ = quiet(known, len(names))  # as many as before, without the object


OTHERS: "dict[str, Callable[[ModuleType], None]]" = {
    "inspect": _shortened_argspec,
    "sysconfig": _suffix_of_libraries,
    "torch": _names_of_python_2,
    "torch.optim.lr_scheduler": _talk_of_schedulers,
    "torch.utils.data.sampler": _samplers_of_data,
    "torchvision.models": _home_of_downloads,
    "typing": _types_of_fields,
}
"""By module: what completes it, where a name alone is not enough."""

MODULES = frozenset((*NAMES, *OTHERS))


_MODULES = ("torch._six.", "torchvision.models.utils.")

_completed: "set[str]" = set()


def complete(name: str, module: "ModuleType") -> None:
    """Gives a module the names that it had; safe to call again.

    Args:
        name: The module's name.
        module: The module, loaded.
    """
    if name in _completed:
        return
    _completed.add(name)
    from importlib import import_module

    for removed, present in NAMES.get(name, {}).items():
        if removed not in vars(module):
            home, _, attribute = present.partition(":")
            setattr(module, removed, getattr(import_module(home), attribute))
    if name in OTHERS:
        OTHERS[name](module)


def complete_loaded() -> None:
    """Completes the modules that are loaded already."""
    for name in MODULES & sys.modules.keys():
        complete(name, sys.modules[name])


def is_given(name: str) -> bool:
    """Whether a dotted name is one of these, or below one.

    Args:
        name: As a program uses it.
    """
    if name == "inspect.getargspec" or f"{name}.".startswith(_MODULES):
        return True
    module, _, rest = name.partition(".")
    return rest.partition(".")[0] in NAMES.get(module, {})
