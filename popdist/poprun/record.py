"""Frozen records for the launcher's pipeline.

Readers and type checkers can treat a record as a dataclass (PEP 681). The launcher does not use the
real ones: ``dataclasses`` imports ``inspect``, which takes a third of a launch's time budget.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: object):  # noqa: ANN201, D103 - only type checkers read it
        return lambda cls: cls


@dataclass_transform(frozen_default=True, eq_default=True)
class Record:
    """Base of frozen records: fields from annotations, defaults, equality and a readable repr."""

    _fields: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        cls._fields = tuple(cls.__annotations__)

    def __init__(self, *positional: Any, **named: Any) -> None:
        values = dict(zip(self._fields, positional, strict=False), **named)
        missing = [
            name for name in self._fields if name not in values and not hasattr(type(self), name)
        ]
        extra = len(positional) + len(named) > len(values) or values.keys() - {*self._fields}
        if missing or extra:
            raise TypeError(f"{type(self).__name__} has the fields {', '.join(self._fields)}")
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def _values(self) -> list[object]:
        return [getattr(self, name) for name in self._fields]

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(tuple(self._values()))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
        return f"{type(self).__name__}({shown})"
