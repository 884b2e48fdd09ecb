"""``poptorch.profiling``, queries about IPU hardware, and the adapter's logger."""

from __future__ import annotations

import functools
import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from popdist.popdist_core import topology
from popdist_torch.errors import NotOnHostError, OptionError, OptionValueError
from popdist_torch.options.option_methods import whole_number

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    _Stream = logging.StreamHandler[TextIO]
else:
    _Stream = logging.StreamHandler  # Python 3.10 takes no parameter


class Channel:
    """A group of names; profiles of ``torch.profiler`` show them as ``channel/name``.

    Args:
        name: The group's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    @contextmanager
    def tracepoint(self, name: str) -> Iterator[None]:
        """Names what runs inside.

        Args:
            name: The name.

        Yields:
            Nothing.
        """
        with torch.profiler.record_function(f"{self._name}/{name}"):
            yield

    def instrument(self, obj: Any, *methods: str) -> None:
        """Names calls of methods.

        Args:
            obj: An object, or a class.
            *methods: Names of its methods.

        Raises:
            OptionError: It has no such method.
        """
        for name in methods:
            method = getattr(obj, name, None)
            if not callable(method):
                raise OptionError("PD300", "the method to instrument does not exist", value=name)
            setattr(obj, name, self._named(name, method))

    def _named(self, name: str, method: Any) -> Any:
        @functools.wraps(method)
        def named(*args: Any, **kwargs: Any) -> Any:
            with self.tracepoint(name):
                return method(*args, **kwargs)

        return named


# Queries about IPU hardware. An ordinary host has none; libraries that refuse to run without it are
# told otherwise where the user asks for that.


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Whether there are so many IPUs.

    Programs ask to choose between the IPU and something else; here the something else is right.
    Wrapped models run either way. With ``poprun --ipu-version 2``, or the variable
    ``POPDIST_IPU_VERSION``, the answer is yes.

    Args:
        num_ipus: Their number.

    Returns:
        Whether a version of IPU was set.
    """
    whole_number("ipuHardwareIsAvailable", num_ipus, least=1)
    return topology().ipu_version is not None


def ipuHardwareVersion() -> int:
    """Which generation of IPU there is.

    Returns:
        The version that ``poprun --ipu-version`` or ``POPDIST_IPU_VERSION`` sets.

    Raises:
        NotOnHostError: None is set: there is no IPU, which raises in PopTorch too.
    """
    version = topology().ipu_version
    if version is None:
        raise NotOnHostError(
            "PD393",
            "there is no IPU here, so there is no version",
            hint="ask ipuHardwareIsAvailable() first; for a program that needs an answer, "
            "poprun --ipu-version 2, or POPDIST_IPU_VERSION=2",
        )
    return version


# The logger and its level, under their published names.


logger = logging.getLogger("popdist.torch")
"""The adapter's logger; programs may use it as any other."""


class _Console(_Stream):
    """Writes to standard error where the program has no log; Python writes warnings only there."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            self.stream = sys.stderr  # of now: programs redirect it
            super().emit(record)


_CONSOLE = _Console()
_CONSOLE.setFormatter(logging.Formatter("[%(name)s] [%(levelname)s] %(message)s"))

_LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERR": logging.ERROR,
    "OFF": logging.CRITICAL + 1,
}


def setLogLevel(level: str | int) -> None:
    """Sets the level of the adapter's log, which standard error shows unless the program has a log.

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
            "PD300",
            "setLogLevel does not support this level",
            value=level,
            accepted=", ".join(_LEVELS),
        )
    logger.setLevel(found)
    logger.addHandler(_CONSOLE)
