"""What the adapter says, and how much of it: the logger under its published names."""

from __future__ import annotations

import logging

from popdist_torch.errors import OptionValueError

logger = logging.getLogger("popdist.torch")
"""The adapter's logger; programs may use it as any other."""

_LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERR": logging.ERROR,
    "OFF": logging.CRITICAL + 1,
}


def setLogLevel(level: str | int) -> None:
    """Sets how much the adapter says.

    Args:
        level: ``TRACE``, ``DEBUG``, ``INFO``, ``WARN``, ``ERR`` or ``OFF``; PopTorch's numbers of
            them, 0 for ``TRACE`` to 5, are accepted too.

    Raises:
        OptionValueError: Another level.
    """
    by_number = dict(enumerate(_LEVELS.values()))
    found = by_number.get(level) if isinstance(level, int) else _LEVELS.get(str(level).upper())
    if found is None:
        raise OptionValueError(
            "PD300", "setLogLevel knows no such level", value=level, accepted=", ".join(_LEVELS)
        )
    logger.setLevel(found)
