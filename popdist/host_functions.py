"""Files of a user with Python functions in place of operators that are compiled for an IPU."""

from __future__ import annotations

import importlib
import os
import runpy

VARIABLE = "POPDIST_CUSTOM_OPS"
"""Python files and modules that register functions, separated by colons."""


def sources() -> list[str]:
    """The files and modules that the variable names."""
    return [one for one in os.environ.get(VARIABLE, "").split(":") if one]


def load(source: str) -> None:
    """Imports a module, or runs a file.

    Args:
        source: The name of a module, or a path that ends with ``.py``.
    """
    if source.endswith(".py"):
        runpy.run_path(source)
    else:
        importlib.import_module(source)
