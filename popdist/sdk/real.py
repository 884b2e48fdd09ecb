"""Finds the SDK's own modules, without importing anything."""

from __future__ import annotations

import sys

from popdist.sdk.finder import ALIASES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec


def real_modules() -> dict[str, str]:
    """The modules of the SDK that are really installed.

    Returns:
        Where each is, by its name; empty on an ordinary machine.
    """
    found = {name: _place(name) for name in ALIASES}
    return {name: place for name, place in found.items() if place is not None}


def _place(name: str) -> str | None:
    """Where a module is; nothing is imported on the way, as TensorFlow takes seconds."""
    search: Sequence[str] | None = None
    spec = None
    so_far = ""
    for part in name.split("."):
        so_far = f"{so_far}.{part}".lstrip(".")
        spec = _real_spec(so_far, search)
        if spec is None:
            return None
        search = spec.submodule_search_locations
    assert spec is not None  # noqa: S101 - no name is empty
    return spec.origin or ", ".join(spec.submodule_search_locations or ())


def _real_spec(name: str, search: Sequence[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        if type(finder).__module__ == "popdist.sdk.finder" or not hasattr(finder, "find_spec"):
            continue
        spec = finder.find_spec(name, search)
        if spec is not None:
            return spec
    return None
