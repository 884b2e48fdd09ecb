"""``poptorch.profiling``: names in profiles for parts of a program."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.errors import OptionError

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
                raise OptionError("PD300", "there is no such method to instrument", value=name)
            setattr(obj, name, self._named(name, method))

    def _named(self, name: str, method: Any) -> Any:
        @functools.wraps(method)
        def named(*args: Any, **kwargs: Any) -> Any:
            with self.tracepoint(name):
                return method(*args, **kwargs)

        return named
