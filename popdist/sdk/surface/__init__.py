"""What each module of the SDK publishes, and how it fares on a host.

One file per module of the SDK holds its list. From the lists come the answers of our modules to
names that they do not define (`missing`), the page ``docs/compatibility.md``, and what
``popdist-sdk check`` says of a program.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from popdist.sdk.names import LISTS, published
from popdist.sdk.surface.answers import Placeholder, UnknownNameError

if TYPE_CHECKING:
    from popdist.sdk.surface.vocabulary import Surface

__all__ = ["load", "missing"]


def load(sdk: str) -> Surface:
    """The list of one module of the SDK.

    Args:
        sdk: The module, a key of `popdist.sdk.names.ALIASES`.

    Returns:
        Its list.
    """
    surface: Surface = import_module(f"popdist.sdk.surface.{LISTS[sdk]}").SURFACE
    return surface


def missing(module: str, name: str) -> Any:
    """What a module answers for a name that it does not define; the end of its ``__getattr__``.

    Args:
        module: The asking module's ``__name__``.
        name: What was asked for, dotted below the module (``Class.method`` for methods).

    Returns:
        For a refused name, a placeholder that can be imported and raises when it is used.

    Raises:
        UnknownNameError: The SDK publishes no such name, with the nearest that it does publish.
            It is an `AttributeError`.
    """
    place = published(module, name)
    # Dunder names are asked for by Python itself, and often.
    if place is None or name.startswith("__"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
    listed = load(place[0])
    entry = listed.find(place[1])
    if entry is not None and entry.status == "refused":
        return Placeholder(listed.sdk, entry)
    raise UnknownNameError.of(listed, place[1], module)
