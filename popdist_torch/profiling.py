"""``poptorch.profiling``, queries about IPU hardware, and the adapter's logger."""

from __future__ import annotations

import functools
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from popdist_torch.errors import NotOnHostError, OptionError, OptionValueError
from popdist_torch.options.settings import whole_number

if TYPE_CHECKING:
    from collections.abc import Iterator


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


# Queries about IPU hardware; an ordinary host has none.


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Whether there are so many IPUs.

    Programs ask to choose between the IPU and something else; here the something else is right.
    Wrapped models run either way.

    Args:
        num_ipus: Their number.

    Returns:
        False.
    """
    whole_number("ipuHardwareIsAvailable", num_ipus, least=1)
    return False


def ipuHardwareVersion() -> NoReturn:
    """Which generation of IPU there is.

    Raises:
        NotOnHostError: Always: there is none, which raises in PopTorch too.
    """
    raise NotOnHostError(
        "PD393",
        "there is no IPU here, so there is no version",
        hint="ask ipuHardwareIsAvailable() first",
    )


# The logger and its level, under their published names.


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
    """Sets the level of the adapter's log.

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
