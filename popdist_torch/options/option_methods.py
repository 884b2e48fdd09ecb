"""Declarations of the fluent methods of options, and the checks of their values.

Most methods of PopTorch's options check one value and store it under one key. Declared here as
data, they share one implementation, and the tables of the documentation are made from them.
"""

from __future__ import annotations

import inspect
import os
from enum import Enum
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar

from popdist import settings
from popdist_torch.errors import OptionError, OptionValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from popdist_torch.options.storage import OptionsDict


stored_only = partial(settings.stored_only, "popdist.torch")
"""Says once per process, at debug level, that the option of a name has no effect here."""

Group = TypeVar("Group", bound="OptionsDict")
Method = TypeVar("Method", bound="Callable[..., Any]")

_REQUIRED = inspect.Parameter.empty


class OptionMethod:
    """A method that checks one value, stores it, and returns the options.

    Args:
        what: What the value says, as one sentence.
        argument: The value's published name.
        key: Where it is stored.
        check: Takes the method's name and the value; returns what is stored.
        default: The value where none is given.
        effect: What it changes on a host; None for what only an IPU uses.
        clears: Whether None removes the key.
    """

    def __init__(
        self,
        what: str,
        argument: str,
        key: str,
        check: Callable[[str, Any], Any],
        *,
        default: Any = _REQUIRED,
        effect: str | None = None,
        clears: bool = False,
    ) -> None:
        self.__doc__ = what
        self._key = key
        self._check = check
        self._clears = clears
        self.effect = effect
        parameter = inspect.Parameter(
            argument, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default
        )
        self.__signature__ = inspect.Signature([parameter])

    def __set_name__(self, owner: type, name: str) -> None:
        self.__name__ = name
        self.__qualname__ = f"{owner.__qualname__}.{name}"

    def __get__(self, options: Group, owner: type[Group]) -> Callable[..., Group]:
        if options is None:
            return self  # type: ignore[unreachable]  # on the class: the declaration itself

        def store(*args: Any, **kwargs: Any) -> Group:
            bound = self.__signature__.bind(*args, **kwargs)
            bound.apply_defaults()
            (value,) = bound.arguments.values()
            self._store(options, value)
            return options

        store.__name__, store.__doc__ = self.__name__, self.__doc__
        return store

    def _store(self, options: OptionsDict, value: Any) -> None:
        if value is None and self._clears:
            options.deleteIfExists(self._key)
        else:
            options.put(self._key, self._check(self.__name__, value))
        if self.effect is None:
            stored_only(options.path + self.__name__)


def without_effect(method: Method) -> Method:
    """Marks a method whose value only an IPU uses; each reports it once, at debug level."""

    @wraps(method)
    def marked(self: OptionsDict, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        stored_only(self.path + method.__name__)
        return result

    marked.effect = None  # type: ignore[attr-defined]
    return marked  # type: ignore[return-value]


def with_effect(effect: str) -> Callable[[Method], Method]:
    """Records, in a few words for the documentation, what a method changes on a host."""

    def mark(method: Method) -> Method:
        method.effect = effect  # type: ignore[attr-defined]
        return method

    return mark


def declared(group: type[OptionsDict]) -> Iterator[tuple[str, str, str | None]]:
    """Path, first sentence and effect on a host (or None) of each method, for the documentation."""
    for name in dir(group):
        method = inspect.getattr_static(group, name)
        if hasattr(method, "effect"):
            yield group.path + name, (method.__doc__ or "").splitlines()[0], method.effect


# Argument checks that options share; each receives the option's name and the value.


Member = TypeVar("Member")


def whole_number(name: str, value: object, *, least: int | None) -> int:
    """The value, if it is a whole number of at least ``least`` (None: any).

    Raises:
        OptionError: It is not a whole number, or too small.
    """
    if not settings.Setting(0, (int,), least=least).accepts(value):
        raise OptionError(
            "PD300",
            f"{name} takes a whole number",
            value=value,
            accepted="any" if least is None else f"{least} or more",
        )
    return int(value)  # type: ignore[call-overload,no-any-return]


def at_least(least: int) -> Callable[[str, Any], int]:
    """`whole_number` with a limit."""
    return partial(whole_number, least=least)


def flag(name: str, value: object) -> bool:
    """The value, if it is a bool.

    Raises:
        OptionError: It is not a bool.
    """
    if not isinstance(value, bool):
        raise OptionError("PD300", f"{name} takes a bool", value=value, accepted="True or False")
    return value


def text(name: str, value: object) -> str:
    """The value of a name or a path, as text.

    Raises:
        OptionError: It is neither.
    """
    if not isinstance(value, str | os.PathLike):
        raise OptionError("PD300", f"{name} takes text", value=value, accepted="a name or a path")
    return str(os.fspath(value))


def member(name: str, value: object, kind: type[Member]) -> Member:
    """The value, if it is a member of an enumeration, its name, or an instance of a class.

    Raises:
        OptionValueError: It is none.
    """
    if isinstance(value, str) and issubclass(kind, Enum) and value in kind.__members__:
        return kind[value]
    if not isinstance(value, kind):
        raise OptionValueError("PD300", f"{name} takes a member of {kind.__name__}", value=value)
    return value


def one_of(kind: type[Member]) -> Callable[[str, Any], Member]:
    """A check for enumerations."""
    return partial(member, kind=kind)


def names(option: str, value: object) -> list[str]:
    """The value, if it is a list of texts.

    Raises:
        OptionError: It is not a list of texts.
    """
    if not settings.Setting(list, (list, tuple), items=str).accepts(value):
        raise OptionError("PD300", f"{option} takes a list of names", value=value)
    return list(value)  # type: ignore[call-overload,no-any-return]  # a list of texts here
