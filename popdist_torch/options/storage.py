"""The storage of options: typed keys, reachable as attributes, that freeze once in use.

The rules are PopTorch's: an unknown key or a value of another type is an ``AssertionError``, a
change after freezing an ``AttributeError``, a private attribute can only be created before the
base constructor has run, and a copy is never frozen.
"""

from __future__ import annotations

import copy
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from popdist.nearest import did_you_mean
from popdist_torch.errors import FrozenOptionsError, OptionError, UnknownOptionError

if TYPE_CHECKING:
    from typing_extensions import Self


class OptionsDict:
    """Named, typed option values.

    Args:
        **defaults: The keys that exist, with their first values; a key's type is that of its value.

    Attributes:
        path: How a program reaches these options from the whole, with a final point.
    """

    path: ClassVar[str] = ""

    def __init__(self, **defaults: Any) -> None:
        self._is_frozen = False
        # Once `_values` exists, no other private attribute can be created.
        self._values = dict(defaults)

    def set(self, **values: Any) -> None:
        """Sets options that exist.

        Args:
            **values: Keys with their new values.

        Raises:
            FrozenOptionsError: The options are in use.
            OptionError: A key does not exist or a value is of another type than the present one.
        """
        self._require_unfrozen()
        for key, value in values.items():
            if key not in self._values:
                raise OptionError(
                    "PD300",
                    f"Invalid option: {key}",
                    value=value,
                    accepted=", ".join(sorted(self._values)),
                )
            expected = type(self._values[key])
            if not _fits(value, expected):
                raise OptionError(
                    "PD300",
                    f"Unexpected type {type(value).__name__} for option {key}",
                    value=value,
                    accepted=f"a value of type {expected.__name__}",
                )
            self._values[key] = value

    def createOrSet(self, **values: Any) -> None:
        """Sets options, creating those that do not exist yet.

        Args:
            **values: Keys with their values.

        Raises:
            FrozenOptionsError: The options are in use.
            OptionError: A value is of another type than the present one.
        """
        self._require_unfrozen()
        for key, value in values.items():
            if key in self._values:
                self.set(**{key: value})
            else:
                self._values[key] = value

    def put(self, key: str, value: Any) -> None:
        """Sets an option, which need not exist yet, to a value that was checked already.

        Raises:
            FrozenOptionsError: The options are in use.
        """
        self._require_unfrozen()
        self._values[key] = value

    def exists(self, name: str) -> bool:
        """Whether an option has a value.

        Args:
            name: The key.

        Returns:
            True if it has.
        """
        return name in self._values

    def deleteIfExists(self, name: str) -> None:
        """Removes an option where it exists.

        Args:
            name: The key.

        Raises:
            FrozenOptionsError: The options are in use.
        """
        self._require_unfrozen()
        self._values.pop(name, None)

    def update(self, other: OptionsDict | dict[str, Any]) -> dict[str, Any]:
        """Merges these values into a dictionary, or into a copy of other options' values.

        Args:
            other: What to merge into; a key in both must have one and the same value.

        Returns:
            The merged values.

        Raises:
            OptionError: A key has two values.
        """
        merged = dict(other if isinstance(other, dict) else other.values())
        for key, value in self._values.items():
            if merged.setdefault(key, value) != value:
                raise OptionError(
                    "PD300", f"option {key} has two values", value=(merged[key], value)
                )
        return merged

    def toDict(self) -> dict[str, Any]:
        """All values as plain data.

        Returns:
            Keys with values; enumerations as their numbers, other objects as they are printed.
        """
        return {key: _plain(value) for key, value in self._values.items()}

    def values(self) -> dict[str, Any]:
        """All values as they are kept.

        Returns:
            A copy: keys with values.
        """
        return dict(self._values)

    def __call__(self, name: str) -> Any:
        """The value of an option.

        Args:
            name: The key.

        Returns:
            Its value.

        Raises:
            OptionError: The option does not exist.
        """
        if name not in self._values:
            raise OptionError(
                "PD300", f"Invalid option: {name}", accepted=", ".join(sorted(self._values))
            )
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        known = [*(n for n in dir(type(self)) if n[0] != "_"), *values]
        raise UnknownOptionError(
            "PD300",
            f"{type(self).__name__} has no option {name!r}",
            hint=None if name.startswith("_") else did_you_mean(name, known, shown="{!r}"),
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            self.set(**{name: value})
        elif name.startswith("__") or name in self.__dict__ or "_values" not in self.__dict__:
            object.__setattr__(self, name, value)
        else:
            raise UnknownOptionError(
                "PD300",
                f"Invalid private attribute {name!r}",
                hint="a subclass sets its private attributes before it calls the base constructor",
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        clone = type(self).__new__(type(self))
        memo[id(self)] = clone
        for name, value in self.__dict__.items():
            # Written past `__setattr__`: the copy has no `_values` to judge names by yet.
            clone.__dict__[name] = copy.deepcopy(value, memo)
        clone.__dict__["_is_frozen"] = False
        return clone

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OptionsDict):
            return NotImplemented
        return self._values == other._values

    __hash__ = None  # type: ignore[assignment]  # equal options can be changed to differ

    def __repr__(self) -> str:
        lines = [f"{key}={shown(self._values[key])}" for key in self._values]
        return f"{type(self).__name__}(" + "".join(f"\n    {line}" for line in lines) + ")"

    def _freeze(self) -> None:
        self.__dict__["_is_frozen"] = True

    def _unfreeze(self) -> None:
        self.__dict__["_is_frozen"] = False

    def checkIsFrozen(self, _option: str | None = None) -> None:
        """Checks that the options are not in use.

        Raises:
            FrozenOptionsError: They are.
        """
        self._require_unfrozen()

    def _require_unfrozen(self) -> None:
        if self._is_frozen:
            raise FrozenOptionsError(
                "PD300",
                "Can't modify frozen Options",
                hint="set options before they are given to a DataLoader or a model, or work on "
                "options.clone()",
            )


def _fits(value: object, expected: type) -> bool:
    # bool is an int to Python, but never a count to a reader.
    if expected is not bool and isinstance(value, bool):
        return False
    return isinstance(value, expected) or (expected is float and isinstance(value, int))


def _plain(value: object) -> Any:
    if isinstance(value, Enum):
        return value.value
    kept = isinstance(value, int | float | str | list | tuple | dict | None)
    return value if kept else repr(value)


def shown(value: object) -> str:
    """A value as printed: a member of an enumeration by its name, anything else by its ``repr``."""
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)
