"""Fluent methods of options as declarations: which key, which check, what it means.

Most methods of PopTorch's options check one value and store it under one key. Declared here as
data, they share one implementation, and the tables of the documentation are made from them.
"""

from __future__ import annotations

import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from popdist_torch.options.effects import stored_only

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from popdist_torch.options.storage import OptionsDict

Group = TypeVar("Group", bound="OptionsDict")
Method = TypeVar("Method", bound="Callable[..., Any]")

_REQUIRED = inspect.Parameter.empty


class Setting:
    """A method that checks one value, stores it, and returns the options.

    Args:
        what: What the value says, as one sentence.
        argument: The value's published name.
        key: Where it is stored.
        check: Takes the method's name and the value; returns what is stored.
        default: The value where none is given.
        effect: What it changes on a host; None for what only an IPU obeys.
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
    """Marks a method whose value only an IPU obeys; each says so once, at debug level.

    Args:
        method: A method of options with more to check than `Setting` does.

    Returns:
        The method, marked.
    """

    @wraps(method)
    def marked(self: OptionsDict, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        stored_only(self.path + method.__name__)
        return result

    marked.effect = None  # type: ignore[attr-defined]
    return marked  # type: ignore[return-value]


def with_effect(effect: str) -> Callable[[Method], Method]:
    """Says what a method changes on a host.

    Args:
        effect: A few words for the documentation.

    Returns:
        A decorator.
    """

    def mark(method: Method) -> Method:
        method.effect = effect  # type: ignore[attr-defined]
        return method

    return mark


def declared(group: type[OptionsDict]) -> Iterator[tuple[str, str, str | None]]:
    """What a class of options offers, for the documentation.

    Args:
        group: The class.

    Yields:
        Path of a method, the first sentence about it, and its effect on a host or None.
    """
    for name in dir(group):
        method = inspect.getattr_static(group, name)
        if hasattr(method, "effect"):
            yield group.path + name, (method.__doc__ or "").splitlines()[0], method.effect
