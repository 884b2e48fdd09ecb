"""How a name that we do not have answers: a refused one when it is used, an unknown one at once."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NoReturn

from popdist.errors import PopdistError
from popdist.nearest import did_you_mean

if TYPE_CHECKING:
    from typing_extensions import Self

    from popdist.sdk.surface.vocabulary import Entry, Surface


class RefusedNameError(PopdistError, NotImplementedError):
    """A name of the SDK was used that means nothing on a host, or that we do not have."""

    @classmethod
    def of(cls, sdk: str, entry: Entry) -> Self:
        """The error of a refused name.

        Args:
            sdk: The SDK's module; empty where the entry is one itself.
            entry: What its list says of the name.
        """
        name = f"{sdk}.{entry.name}".lstrip(".")
        return cls(
            "PD450",
            f"{name} is not available on a host: {entry.reason.rstrip('.')}",
            hint=entry.instead,
        )


class RefusedImportError(RefusedNameError, ModuleNotFoundError):
    """A module of the SDK was imported that we do not have."""

    @classmethod
    def of(cls, sdk: str, entry: Entry) -> Self:
        """The error, as of a refused name; it carries the module's name like any of its kind."""
        error = super().of(sdk, entry)
        error.name = f"{sdk}.{entry.name}".lstrip(".")
        return error


class _UnknownError(PopdistError):
    """A name was asked for that neither the SDK nor our module publishes."""

    @classmethod
    def of(cls, surface: Surface, name: str, module: str) -> Self:
        """The error of an unknown name.

        Args:
            surface: The list of the SDK's module.
            name: Dotted below that module.
            module: The module that was asked.

        Returns:
            The error, with the nearest published name of the same sub-module or class.
        """
        owner, _, last = name.rpartition(".")
        names = [entry.name.rpartition(".") for entry in surface.entries]
        beside = {own for above, _, own in names if above == owner}
        beside |= {own for own in dir(sys.modules.get(module)) if not own.startswith("_")}
        # As the program wrote it: by the SDK's name only where that one was imported.
        asked = f"{surface.sdk}.{owner}".rstrip(".") if surface.sdk in sys.modules else module
        return cls(
            "PD451",
            f"module {asked!r} has no attribute {last!r}",
            hint=did_you_mean(last, sorted(beside), shown="{!r}"),
        )


class UnknownNameError(_UnknownError, AttributeError):
    """An unknown name as an attribute."""


class UnknownImportError(_UnknownError, ImportError):
    """An unknown name in an ``import`` statement."""


class Placeholder:
    """Stands for a refused name: it can be imported and passed around, and raises when used.

    Args:
        sdk: The SDK's module.
        entry: What its list says of the name.
    """

    def __init__(self, sdk: str, entry: Entry) -> None:
        self.__dict__.update(
            _sdk=sdk, _entry=entry, __name__=entry.name.rpartition(".")[2], __module__=sdk
        )

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise RefusedNameError.of(self.__dict__["_sdk"], self.__dict__["_entry"])

    __call__ = __enter__ = __exit__ = __getitem__ = __iter__ = __len__ = _refuse
    __mro_entries__ = _refuse  # `class Mine(poptorch.Refused)`

    def __bool__(self) -> bool:
        return True  # without it, `__len__` would be asked

    def __getattr__(self, name: str) -> Any:
        # Tools look for dunder names on whatever they meet; that is no use of it.
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        self._refuse()

    def __setattr__(self, name: str, value: object) -> None:
        self._refuse()

    def __instancecheck__(self, instance: object) -> bool:
        return False  # nothing can be one

    def __or__(self, other: Any) -> Any:
        return other  # `poptorch.Refused | None` in an annotation

    __ror__ = __or__

    def __repr__(self) -> str:
        return f"<refused {self.__dict__['_sdk']}.{self.__dict__['_entry'].name}>"
