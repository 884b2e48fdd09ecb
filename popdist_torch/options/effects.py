"""Options that are kept for the program's sake but change nothing on a host."""

from __future__ import annotations

import logging
from functools import cache

logger = logging.getLogger("popdist.torch")


@cache
def stored_only(name: str) -> None:
    """Says once per process, at debug level, that something has no effect here.

    Args:
        name: The option as the program spells it.
    """
    logger.debug("%s is stored, and has no effect on a host without IPUs", name)
