"""Replaces functions of TensorFlow and Keras by ours that call them, each for one purpose once."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_PURPOSES = "_popdist_purposes"


def surround(owner: Any, name: str, purpose: str, by: Callable[..., Any]) -> bool:
    """Replaces a function or method; safe to call again.

    Args:
        owner: A class or a module.
        name: The function's name there.
        purpose: By which it is known that the function has been replaced.
        by: Called with the function that was there, and its arguments.

    Returns:
        Whether the function is replaced now, and was not before.
    """
    known = getattr(owner, name)
    purposes: frozenset[str] = getattr(known, _PURPOSES, frozenset())
    if purpose in purposes:
        return False

    @functools.wraps(known)
    def surrounding(*args: Any, **kwargs: Any) -> Any:
        return by(known, *args, **kwargs)

    setattr(surrounding, _PURPOSES, purposes | {purpose})
    setattr(owner, name, surrounding)
    return True
