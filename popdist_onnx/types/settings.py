"""Base of option objects: attributes that exist, with values of their declared type."""

from __future__ import annotations

import dataclasses
import logging
import typing
from enum import Enum
from functools import cache
from typing import Any

from popdist.nearest import did_you_mean
from popdist_onnx.errors import ArgumentError, OptionError

logger = logging.getLogger("popdist.onnx")


def option(default: Any, meaning: str) -> Any:
    """Declares an option of a `Settings` class on which something depends.

    Args:
        default: The value before the program sets one, or what makes one for each object.
        meaning: What it does, for the documentation.

    Returns:
        The dataclass field.
    """
    return _field(default, {"meaning": meaning, "on_host": True})


def stored(default: Any, meaning: str) -> Any:
    """Declares an option that is kept for the program's sake, but changes nothing on a host.

    Args:
        default: The value before the program sets one, or what makes one for each object.
        meaning: What it does on an IPU, for the documentation.

    Returns:
        The dataclass field.
    """
    return _field(default, {"meaning": meaning, "on_host": False})


def _field(default: Any, metadata: dict[str, object]) -> Any:
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass
class Settings:
    """An object whose attributes are the declared options, and no others."""

    def __setattr__(self, name: str, value: object) -> None:
        field = type(self).__dataclass_fields__.get(name)
        if field is None:
            raise self._unknown(name)
        expected = _types(type(self))[name]  # type: ignore[arg-type]  # classes are hashable
        checked = _checked(f"{type(self).__name__}.{name}", value, expected)
        if not field.metadata["on_host"] and hasattr(self, name):
            _stored_only(f"{type(self).__name__}.{name}")
        super().__setattr__(name, checked)

    def __getattr__(self, name: str) -> Any:
        # Called for missing attributes only.
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._unknown(name)

    def _unknown(self, name: str) -> OptionError:
        return OptionError(
            "PD506",
            f"{type(self).__name__} has no option {name}",
            hint=did_you_mean(name, type(self).__dataclass_fields__, cutoff=0.5),
        )


@cache
def _types(settings: type[Settings]) -> dict[str, Any]:
    return typing.get_type_hints(settings)


@cache
def _stored_only(name: str) -> None:
    # Once per process: option objects are set in loops.
    logger.debug("%s is stored, and has no effect on a host without IPUs", name)


def _checked(name: str, value: object, expected: Any) -> object:
    plain = typing.get_origin(expected) or expected
    if plain is float and type(value) is int:
        return float(value)
    # A bool is an int to Python, but a switch is no count.
    wrong_bool = plain is not bool and isinstance(value, bool)
    # An enumeration's members are ints, but belong to it alone.
    wrong_enum = plain is int and isinstance(value, Enum)
    if wrong_bool or wrong_enum or not isinstance(value, plain):
        accepted = plain.__name__
        if issubclass(plain, Enum):
            accepted = ", ".join(f"{plain.__name__}.{member.name}" for member in plain)
        raise ArgumentError(
            "PD506", f"{name} takes a value of another type", value=value, accepted=accepted
        )
    return value
