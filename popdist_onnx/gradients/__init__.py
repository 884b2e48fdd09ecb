"""Gradient rules: one file per family of operators, one small function per rule."""

from __future__ import annotations

import importlib
import pkgutil


def load_rules() -> None:
    """Imports every module of this folder, so that all rules are registered."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
