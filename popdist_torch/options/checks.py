"""Argument checks that options share; each takes the option's name and the value."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from popdist_torch.errors import OptionError, OptionValueError

if TYPE_CHECKING:
    from collections.abc import Callable

Member = TypeVar("Member")


def whole_number(name: str, value: object, *, least: int | None) -> int:
    """A whole number.

    Args:
        name: The option as the program spells it.
        value: What the program gave.
        least: The smallest accepted value; None for any.

    Returns:
        The value.

    Raises:
        OptionError: It is no whole number, or too small.
    """
    wrong = isinstance(value, bool) or not isinstance(value, int)
    if wrong or (least is not None and value < least):  # type: ignore[operator]  # an int here
        raise OptionError(
            "PD300",
            f"{name} takes a whole number",
            value=value,
            accepted="any" if least is None else f"{least} or more",
        )
    return int(value)  # type: ignore[call-overload,no-any-return]


def at_least(least: int) -> Callable[[str, Any], int]:
    """A check for counts.

    Args:
        least: The smallest accepted value.

    Returns:
        `whole_number` with that limit.
    """
    return partial(whole_number, least=least)


def flag(name: str, value: object) -> bool:
    """A switch.

    Args:
        name: The option as the program spells it.
        value: What the program gave.

    Returns:
        The value.

    Raises:
        OptionError: It is no bool.
    """
    if not isinstance(value, bool):
        raise OptionError("PD300", f"{name} takes a bool", value=value, accepted="True or False")
    return value


def text(name: str, value: object) -> str:
    """A name or a path.

    Args:
        name: The option as the program spells it.
        value: What the program gave.

    Returns:
        The value as text.

    Raises:
        OptionError: It is neither.
    """
    if not isinstance(value, str | os.PathLike):
        raise OptionError("PD300", f"{name} takes text", value=value, accepted="a name or a path")
    return str(os.fspath(value))


def member(name: str, value: object, kind: type[Member]) -> Member:
    """A member of an enumeration, or an instance of a class.

    Args:
        name: The option as the program spells it.
        value: What the program gave.
        kind: The enumeration or class.

    Returns:
        The value.

    Raises:
        OptionValueError: It is none.
    """
    if not isinstance(value, kind):
        raise OptionValueError("PD300", f"{name} takes a member of {kind.__name__}", value=value)
    return value


def one_of(kind: type[Member]) -> Callable[[str, Any], Member]:
    """A check for enumerations.

    Args:
        kind: The enumeration.

    Returns:
        `member` for it.
    """
    return partial(member, kind=kind)


def names(option: str, value: object) -> list[str]:
    """Several names.

    Args:
        option: The option as the program spells it.
        value: What the program gave.

    Returns:
        The names.

    Raises:
        OptionError: It is no list of texts.
    """
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise OptionError("PD300", f"{option} takes a list of names", value=value)
    return list(value)
