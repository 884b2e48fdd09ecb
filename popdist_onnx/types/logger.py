"""`getLogger`: PopART's names for the standard library's log levels."""

from __future__ import annotations

import logging

from popdist_onnx.errors import ValueRangeError

_LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERR": logging.ERROR,
    "CRITICAL": logging.CRITICAL,
    "OFF": logging.CRITICAL + 10,
}
_ROOT = "popdist.onnx"


class Logger:
    """One of the adapter's loggers; a handler is the program's own affair.

    Args:
        name: The part of the adapter, or ``all``.
    """

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(_ROOT if name == "all" else f"{_ROOT}.{name}")
        self.debug = self._logger.debug
        self.info = self._logger.info
        self.warn = self._logger.warning
        self.err = self._logger.error
        self.critical = self._logger.critical

    def trace(self, message: str, *arguments: object) -> None:
        """Writes a message of the lowest level.

        Args:
            message: A format of the standard library's kind.
            *arguments: Its values.
        """
        self._logger.log(_LEVELS["TRACE"], message, *arguments)

    def setLevel(self, level: str) -> None:
        """Says which messages are kept.

        Args:
            level: The least level.

        Raises:
            ValueRangeError: There is no such level.
        """
        if level not in _LEVELS:
            raise ValueRangeError(
                "PD506", "not a log level", value=level, accepted=", ".join(_LEVELS)
            )
        self._logger.setLevel(_LEVELS[level])


def getLogger(name: str = "all") -> Logger:
    """The logger of a part of the adapter.

    Args:
        name: The part (``session``, ``builder``, ...), or ``all``.

    Returns:
        The logger.
    """
    return Logger(name)
