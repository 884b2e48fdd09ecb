"""Which of the published arguments a user's function takes."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def accepts(function: Callable[..., Any], name: str) -> bool:
    """Whether a function can be called with a keyword.

    Args:
        function: A function of the user's program, or a partial or callable object.
        name: The keyword.

    Returns:
        True where a parameter has that name, or any keyword is taken.
    """
    parameters = inspect.signature(function).parameters.values()
    return any(p.name == name or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
