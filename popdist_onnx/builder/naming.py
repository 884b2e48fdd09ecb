"""Ids of tensors: name scopes, and a number where a name is taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from popdist_onnx.errors import ArgumentError, ValueRangeError
from popdist_onnx.graph.names import RESERVED

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class DebugContext:
    """What a program says of a tensor or an operator for people to read.

    Args:
        name: The name.
    """

    name: str = ""


class Pushed:
    """A context in which a value is on a stack. As PopART's, it can be entered again and again.

    Args:
        stack: The stack.
        value: The value.
    """

    def __init__(self, stack: list[Any], value: Any) -> None:
        self._stack = stack
        self._value = value

    def __enter__(self) -> None:
        """Pushes the value."""
        self._stack.append(self._value)

    def __exit__(self, *_error: object) -> None:
        """Removes it."""
        self._stack.pop()


class Ids:
    """The ids that a model has; sub-graphs share them with their parents."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._scopes: list[str] = []

    def fresh(self, name: str) -> str:
        """An id in the current scope: the name, or ``name/1``, ``name/2``, ..."""
        base = chosen = self.scoped(name)
        number = 0
        while chosen in self._taken:
            number += 1
            chosen = f"{base}/{number}"
        self._taken.add(chosen)
        return chosen

    def scoped(self, name: str) -> str:
        """A name in the current scope: ``scope/name``, or ``scope/`` of an empty name."""
        return "/".join([*self._scopes, name])

    def take(self, ids: Iterable[str]) -> None:
        """Marks ids as taken."""
        self._taken.update(ids)

    def scope(self, name: str) -> Pushed:
        """Puts ``name/`` before the ids made meanwhile."""
        return Pushed(self._scopes, name)


def debug_name(context: object) -> str:
    """The name in a ``debugContext`` argument.

    Args:
        context: Text, or a `DebugContext`.

    Returns:
        The name; empty where none was given.

    Raises:
        ArgumentError: It is neither.
    """
    if isinstance(context, DebugContext):
        return context.name
    if not isinstance(context, str):
        raise ArgumentError("PD501", "debugContext takes a text or a DebugContext", value=context)
    return context


def require_unreserved(tensor_id: str) -> None:
    """Refuses ids that training gives to tensors of its own.

    Args:
        tensor_id: The id of a model's input or output.

    Raises:
        ValueRangeError: It begins with a reserved prefix.
    """
    for prefix in RESERVED:
        if tensor_id.startswith(prefix):
            raise ValueRangeError(
                "PD504",
                f"'{tensor_id}' begins with '{prefix}', which is reserved for what training adds",
                hint="give the tensor another name",
            )
