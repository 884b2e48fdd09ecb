"""The running call of a wrapped model: its replicas, and the weight update that it makes.

An update runs ``forward`` for each micro-batch and each local replica, one after the other. What
an IPU does once for an update waits here.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from popdist_torch.options.placement import Placement

_placement: ContextVar[Placement | None] = ContextVar("placement", default=None)
_calls = 0
"""Calls of wrapped models that run, in any thread."""

_waiting: ContextVar[dict[int, Callable[[], None]] | None] = ContextVar("waiting", default=None)


class wrapped_call:  # noqa: N801 - used as a function is; a generator would cost small calls more
    """Marks what runs as part of a wrapped model with some replicas."""

    def __init__(self, here: Placement) -> None:
        self._here = here

    def __enter__(self) -> None:
        """Marks it."""
        global _calls  # noqa: PLW0603 - of all threads
        self._token = _placement.set(self._here)
        _calls += 1

    def __exit__(self, *error: object) -> None:
        """Ends it."""
        global _calls  # noqa: PLW0603 - of all threads
        _calls -= 1
        _placement.reset(self._token)


def placement() -> Placement | None:
    """The replicas of the model that runs; None outside of a model."""
    return _placement.get()


def isRunningOnIpu() -> bool:
    """Whether this code is part of a call of a wrapped model.

    Returns:
        True inside ``trainingModel(...)(...)`` and ``inferenceModel(...)(...)``, whatever device
        they run on; False elsewhere, also where the same module is called plainly.
    """
    # Backward passes on a GPU, which may run parts of forward again, have threads of their own.
    elsewhere = _calls > 0 and torch._C._current_graph_task_id() != -1  # noqa: SLF001 - no public name
    return _placement.get() is not None or elsewhere


class update:  # noqa: N801 - as above
    """Wraps the micro-batches of one weight update; what waits runs at the end."""

    def __enter__(self) -> None:
        """Begins it."""
        self._actions: dict[int, Callable[[], None]] = {}
        self._token = _waiting.set(self._actions)

    def __exit__(self, kind: object, *error: object) -> None:
        """Ends it."""
        _waiting.reset(self._token)
        for action in self._actions.values() if kind is None else ():
            action()


def before_update(changed: torch.Tensor, action: Callable[[], None]) -> None:
    """Runs an action once for an update, before the weights change; at once outside of training.

    Args:
        changed: The tensor that the action changes; of several actions the last one runs.
        action: The action.
    """
    waiting = _waiting.get()
    if waiting is None:
        action()
    else:
        waiting[id(changed)] = action
