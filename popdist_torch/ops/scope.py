"""Whether code runs inside a wrapped model: what PopTorch programs mean by "on the IPU"."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_inside: ContextVar[bool] = ContextVar("inside a wrapped model", default=False)


@contextmanager
def wrapped_call() -> Iterator[None]:
    """Marks what runs as part of a wrapped model.

    Yields:
        Nothing.
    """
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


def isRunningOnIpu() -> bool:
    """Whether this code is part of a call of a wrapped model.

    Returns:
        True inside ``trainingModel(...)(...)`` and ``inferenceModel(...)(...)``, whatever device
        they run on; False elsewhere, also where the same module is called plainly.
    """
    return _inside.get()
