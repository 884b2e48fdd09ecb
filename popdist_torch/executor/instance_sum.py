"""Gradients moved into flat buffers one by one, and summed there over all instances."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from popdist.exchange import Exchange, Item, allocate, plan, views

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

_USED = "used by any replica"


class InstanceSum:
    """The sum of the ``grad`` attributes of some parameters over all instances.

    One round is `begin`, `collect` for any parameter whose gradient is complete, `finish`. A small
    vector travels along that counts who had a gradient at all, so that a parameter without one on
    all instances stays without, as it would in one process.

    Args:
        parameters: The parameters, in the order in which their gradients are completed.
        names: Their names.
        horovod: The module ``horovod.torch``, initialised.
        label: Prefix for the names of what travels; equal on all instances.
        wire: The type in which gradients travel; None for their own.

    Attributes:
        waited: Seconds spent in `finish`, all rounds together: what of the communication was not
            hidden behind backward passes.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        names: Sequence[str],
        horovod: Any,
        label: str,
        *,
        wire: torch.dtype | None = None,
    ) -> None:
        self.waited = 0.0
        self._parameters = list(parameters)
        items = []
        for name, parameter in zip(names, self._parameters, strict=True):
            dtype = wire if wire and parameter.is_floating_point() else parameter.dtype
            spelled = str(dtype).removeprefix("torch.")
            items.append(Item(name, parameter.numel(), spelled, dtype.itemsize))
        # Of the most common type, so that it usually travels in the last slice of the gradients.
        items.append(Item(_USED, len(items), "float32", 4))
        layout = plan(items)
        self._arenas = allocate(layout, device=self._parameters[0].device)
        shapes = [tuple(p.shape) for p in self._parameters] + [(len(self._parameters),)]
        *self._views, self._used = views(layout, self._arenas, shapes)
        self._exchange = Exchange(layout, self._arenas, horovod, name=label)
        self._collected: set[int] = set()

    def begin(self) -> None:
        """Starts a round: no gradient is complete."""
        self._exchange.begin()
        self._collected.clear()
        self._used.zero_()

    def collect(self, index: int, factor: float = 1.0) -> None:
        """Takes a complete gradient; its slices leave if they wait for no other.

        Args:
            index: Index of its parameter.
            factor: What to multiply it with.

        Raises:
            BackendError: It was taken already in this round.
        """
        gradient, view = self._parameters[index].grad, self._views[index]
        if gradient is None:
            view.zero_()
        elif gradient.data_ptr() != view.data_ptr() or gradient.dtype != view.dtype:
            view.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
        if gradient is not None:
            self._used[index] = 1
            if factor != 1:
                view.mul_(factor)
        self._collected.add(index)
        self._exchange.ready(index)

    def finish(self, factor: float = 1.0) -> None:
        """Takes what is left, and waits for the sums, which become the parameters' gradients.

        Args:
            factor: What gradients that are left are multiplied with.

        Raises:
            BackendError: Another instance ended or failed meanwhile.
        """
        for index in range(len(self._parameters)):
            if index not in self._collected:
                self.collect(index, factor)
        started = time.perf_counter()
        self._exchange.ready(len(self._parameters))
        self._exchange.finish()
        self.waited += time.perf_counter() - started
        used = self._used.tolist()
        for parameter, view, count in zip(self._parameters, self._views, used, strict=True):
            parameter.grad = view.to(parameter.dtype) if count else None
