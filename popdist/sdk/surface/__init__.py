"""What each module of the SDK publishes, and how it fares on a host.

One file per module of the SDK holds its list. From the lists come the answers of our modules to
names that they do not define (`missing`), the page ``docs/compatibility.md``, and what
``popdist-sdk check`` says of a program.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from popdist.sdk.finder import ALIASES
from popdist.sdk.surface.answers import (
    Placeholder,
    RefusedImportError,
    UnknownImportError,
    UnknownNameError,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from popdist.sdk.surface.vocabulary import Surface

__all__ = ["load", "missing", "published", "refuse_import", "refused_names"]

LISTS: dict[str, str] = {
    "popart": "popart",
    "horovod.popart": "horovod_popart",
    "poptorch": "poptorch",
    "poptorch_geometric": "poptorch_geometric",
    "tensorflow.python.ipu": "tensorflow_ipu",
    "ipu_tensorflow_addons": "tensorflow_addons",
    "tensorflow.compiler.plugin": "tensorflow_plugin",
    "libpvti": "libpvti",
}
"""The file beside this one that lists what a module of the SDK publishes."""


def load(sdk: str) -> Surface:
    """The list of one module of the SDK.

    Args:
        sdk: The module, a key of `popdist.sdk.finder.ALIASES`.
    """
    surface: Surface = import_module(f"{__name__}.{LISTS[sdk]}").SURFACE
    return surface


def published(module: str, name: str = "") -> tuple[str, str] | None:
    """Where the SDK publishes what a module holds.

    Args:
        module: A module, by our name or by the SDK's.
        name: A dotted name in it.

    Returns:
        The SDK's module (a key of `popdist.sdk.finder.ALIASES`) and the dotted name below it, or
        None for a module that stands for none of the SDK's.
    """
    full = f"{module}.{name}" if name else module
    # The longest first: `popdist_onnx.horovod` is not a sub-module of `popart`.
    for sdk, mine in sorted(ALIASES.items(), key=lambda pair: -len(pair[1])):
        for root in (mine, sdk):
            if full == root or full.startswith(f"{root}."):
                return sdk, full[len(root) + 1 :]
    return None


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
        UnknownImportError: The same in a ``from ... import`` statement, an `ImportError`.
    """
    place = published(module, name)
    # Dunder names are asked for by Python itself, and often.
    if place is None or name.startswith("__"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
    listed = load(place[0])
    entry = listed.find(place[1])
    if entry is not None and entry.status == "refused":
        return Placeholder(listed.sdk, entry)
    # Python drops the text of an AttributeError in a `from ... import` statement.
    caller = sys._getframe(1).f_back  # noqa: SLF001 - past the module's __getattr__
    kind = UnknownImportError if _is_from_import(caller) else UnknownNameError
    raise kind.of(listed, place[1], module)


def _is_from_import(frame: FrameType | None) -> bool:
    from dis import opmap

    return frame is not None and frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]


def refused_names(module: str) -> Callable[[str], Placeholder]:
    """Placeholders for the names of a module that programs may import but not use.

    Args:
        module: A module of `popdist.sdk.surface.absent.ABSENT`.

    Returns:
        The module's ``__getattr__``.
    """
    from popdist.sdk.surface.absent import ABSENT

    (entry,) = (entry for entry in ABSENT if entry.name == module)

    def answer(name: str) -> Placeholder:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
        return Placeholder("", entry._replace(name=f"{module}.{name}"))

    return answer


def refuse_import(name: str) -> None:
    """Says why a module of the SDK cannot be imported, where there is more to say than Python does.

    Args:
        name: A module by the SDK's name that we do not have.

    Raises:
        RefusedImportError: It is known, and refused.
        UnknownImportError: It is below a module of the SDK that is published, and itself is not.
    """
    from popdist.sdk.surface.absent import ABSENT

    for entry in ABSENT:
        if name == entry.name or name.startswith(f"{entry.name}."):
            raise RefusedImportError.of("", entry)
    place = published(name)
    if place is not None:
        listed = load(place[0])
        refusal = listed.find(place[1])
        if refusal is not None and refusal.status == "refused":
            raise RefusedImportError.of(listed.sdk, refusal)
        if place[1]:
            raise UnknownImportError.of(listed, place[1], name.rpartition(".")[0])
