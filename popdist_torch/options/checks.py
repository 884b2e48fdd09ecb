"""Argument checks that several groups of options share."""

from __future__ import annotations

from typing import TypeVar

from popdist_torch.errors import OptionError, OptionValueError

Member = TypeVar("Member")


def whole_number(name: str, value: object, *, least: int) -> int:
    """A count.

    Args:
        name: The option as the program spells it.
        value: What the program gave.
        least: The smallest accepted value.

    Returns:
        The value.

    Raises:
        OptionError: It is no whole number, or too small.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(
            "PD300",
            f"{name} takes a whole number",
            value=value,
            accepted=f"{least} or more",
        )
    return value


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


def member(name: str, value: object, kind: type[Member]) -> Member:
    """A member of an enumeration.

    Args:
        name: The option as the program spells it.
        value: What the program gave.
        kind: The enumeration.

    Returns:
        The value.

    Raises:
        OptionValueError: It is none of the enumeration's members.
    """
    if not isinstance(value, kind):
        raise OptionValueError("PD300", f"{name} takes a member of {kind.__name__}", value=value)
    return value
