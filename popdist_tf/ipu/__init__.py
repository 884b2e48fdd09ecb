"""The published module tree of the IPU's TensorFlow: a path in a guide is a path here.

Modules hold no code of their own; they re-export from the packages beside this one, and load on
first use.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from popdist.sdk.surface import missing


def __getattr__(name: str) -> Any:
    if name.startswith("_") or find_spec(f"{__name__}.{name}") is None:
        return missing(__name__, name)
    return import_module(f"{__name__}.{name}")
