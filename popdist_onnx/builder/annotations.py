"""Placement annotations in a file: as metadata of nodes, where every tool passes them by.

PopART writes them as attributes. In files that it wrote they stay so: names that begin with two
underscores are exempt from the schemas.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "__"
"""Beginning of every annotation's key."""

VIRTUAL_GRAPH = "__ipu_number"
PIPELINE_STAGE = "__pipeline_stage"
EXECUTION_PHASE = "__execution_phase"
RECOMPUTE = "__recompute_output"
SCHEDULE_PRIORITY = "__schedule_priority"
EXCLUDE_PATTERNS = "__exclude_patterns"
PARTIALS_TYPE = "__partials_type"
MEMORY_PROPORTION = "__available_memory_proportion"
SERIALIZE_MATMUL = "__serialize_matmul"
OUTLINE = "__outline"
INPLACE = "__inplace_preferences"


def written(value: Any) -> str:
    """An annotation's value as metadata hold it.

    Args:
        value: Numbers, texts, and lists or dictionaries of these.

    Returns:
        JSON.
    """
    return json.dumps(value, default=lambda one: one.item())


def read(text: str) -> Any:
    """The inverse of `written`."""
    return json.loads(text)


def current_notes(current: Mapping[str, list[Any]]) -> dict[str, str]:
    """The annotations that hold where a node is made.

    Args:
        current: For each key, the values of the contexts around, innermost last.

    Returns:
        The node's metadata.
    """
    return {key: written(values[-1]) for key, values in current.items() if values}
