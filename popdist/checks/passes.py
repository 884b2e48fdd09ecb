"""Further passes of a program's model for a measurement: nothing is exchanged, nothing stays.

Each adapter adds what its framework has: variables, generators and layers of its own.
"""

from __future__ import annotations

import random
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_local = 0
"""How many `local` contexts are open, in all threads of the process."""


class NotJudgedError(Exception):
    """A loss cannot be measured; the text is the reason."""


class ExchangeError(NotJudgedError):
    """A pass has called a collective operation, which other processes do not call now."""


class _NoExchange:
    """A library of Horovod without its collective operations."""

    def __init__(self, library: Any, is_collective: Callable[[str], bool]) -> None:
        self._library = library
        self._is_collective = is_collective

    def __getattr__(self, name: str) -> Any:
        """An attribute of the library, unless it is a collective operation."""
        if self._is_collective(name):
            raise ExchangeError(f"a pass calls {name}")
        return getattr(self._library, name)


@contextmanager
def without_exchange(
    module: str, library: str, is_collective: Callable[[str], bool]
) -> Iterator[None]:
    """Makes collective operations of Horovod raise `ExchangeError` inside.

    Args:
        module: The module of Horovod that calls its library; it need not be imported.
        library: The module's name for the library.
        is_collective: Whether an attribute of the library is a collective operation.
    """
    operations = sys.modules.get(module)
    if operations is None:
        yield
        return
    known = getattr(operations, library)
    setattr(operations, library, _NoExchange(known, is_collective))
    try:
        yield
    finally:
        setattr(operations, library, known)


@contextmanager
def local() -> Iterator[None]:
    """Marks what runs inside as of this process alone: it need not exchange anything."""
    global _local  # noqa: PLW0603 - a program may train in other threads than it says so in
    _local += 1
    try:
        yield
    finally:
        _local -= 1


def is_local() -> bool:
    """Whether what runs now is of this process alone."""
    return _local > 0


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Puts the states of Python's and numpy's random numbers back."""
    numpy: Any = sys.modules.get("numpy")
    state, of_numpy = random.getstate(), None if numpy is None else numpy.random.get_state()
    try:
        yield
    finally:
        random.setstate(state)
        if numpy is not None:
            numpy.random.set_state(of_numpy)
