"""Work of a forward pass that an update does once, after its last micro-batch.

An update runs ``forward`` for each micro-batch and each local replica, one after the other. What
an IPU does once for an update waits here.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from popdist_torch.options.placement import Placement

_waiting: ContextVar[dict[int, Callable[[], None]] | None] = ContextVar("waiting", default=None)
_placement: ContextVar[Placement | None] = ContextVar("placement", default=None)


@contextmanager
def update() -> Iterator[None]:
    """Wraps the micro-batches of one weight update; what waits runs at the end."""
    waiting: dict[int, Callable[[], None]] = {}
    token = _waiting.set(waiting)
    try:
        yield
    finally:
        _waiting.reset(token)
    for action in waiting.values():
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


@contextmanager
def over_replicas(here: Placement) -> Iterator[None]:
    """Wraps a call of a model with the replicas of its options."""
    token = _placement.set(here)
    try:
        yield
    finally:
        _placement.reset(token)


def placement() -> Placement | None:
    """The replicas of the model that runs; None outside of a model."""
    return _placement.get()
