"""One declared setting: its default, what it accepts, what it changes on a host, what it means.

The options of all adapters are declared with it: nested categories in TensorFlow, attributes in
PopART, methods in PopTorch. Those forms, and the types of their errors, are published and stay with
the adapters; documentation is made from the declarations.
"""

from __future__ import annotations

import logging
from copy import deepcopy
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any


@dataclass(frozen=True)
class Setting:
    """A declared setting.

    Attributes:
        default: The value before a program sets one, or what makes one for each object.
        types: The types that it accepts. A bool or a member of an enumeration is not an int here.
        effect: What it changes on a host; empty where it is kept for the program's sake only.
        meaning: What it does, for the documentation.
        items: The type of what a list or tuple holds; None for anything.
        least: The smallest accepted number; None for any.
    """

    default: Any
    types: tuple[type, ...]
    effect: str = ""
    meaning: str = ""
    items: type | None = None
    least: int | None = None

    def fresh(self) -> Any:
        """The default, for one object alone."""
        return self.default() if callable(self.default) else deepcopy(self.default)

    def accepts(self, value: object) -> bool:
        """Whether a value may be assigned."""
        if not _is_one(value, self.types):
            return False
        if self.items is not None and isinstance(value, (list, tuple)):
            return all(_is_one(item, (self.items,)) for item in value)
        return self.least is None or value >= self.least  # type: ignore[operator]  # a number here

    @property
    def accepted(self) -> str:
        """What is accepted, in words."""
        words = " or ".join(self._described(kind) for kind in self.types)
        return words if self.least is None else f"{words}, {self.least} or more"

    def _described(self, kind: type) -> str:
        if issubclass(kind, Enum):
            return ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
        if self.items is not None and issubclass(kind, (list, tuple)):
            return f"{kind.__name__} of {self.items.__name__}"
        return kind.__name__


def _is_one(value: object, types: tuple[type, ...]) -> bool:
    """Like `isinstance`, but a switch is not a count, and an enumeration's members are its own."""
    if isinstance(value, bool):
        return bool in types
    if isinstance(value, Enum):
        types = tuple(kind for kind in types if issubclass(kind, Enum))
    return isinstance(value, types)


@cache
def stored_only(logger: str, name: str) -> None:
    """Says once per process, at debug level, that something has no effect here.

    Args:
        logger: The adapter's logger.
        name: The option as the program spells it.
    """
    message = "%s is stored, and has no effect on a host without IPUs"
    logging.getLogger(logger).debug(message, name)
