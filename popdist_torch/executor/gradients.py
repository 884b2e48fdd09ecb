"""The gradients of one weight update: accumulated by backward passes, summed over instances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from popdist.exchange import Exchange, Item, allocate, plan, views

if TYPE_CHECKING:
    from collections.abc import Sequence

_USED = "used by any replica"


class Gradients:
    """Gradients of one process's parameters, in their ``grad`` attributes.

    One update is `begin`, a `backward` per micro-batch and replica, `end`.

    Args:
        parameters: What is trained, in the order of the model.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters = list(parameters)

    def begin(self) -> None:
        """Starts an update without gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def backward(self, loss: torch.Tensor, seed: float, *, last: bool) -> None:
        """Adds the gradients of one replica's micro-batch.

        Args:
            loss: The loss, of any shape; the sum of its elements is differentiated.
            seed: Factor of the gradients.
            last: Whether no other backward pass of this process follows in this update.
        """
        del last
        torch.autograd.backward(loss, torch.full_like(loss, seed))

    def end(self, factor: float) -> None:
        """Makes the gradients what the optimizer reads.

        Args:
            factor: What to multiply them with.
        """
        present = [p.grad for p in self._parameters if p.grad is not None]
        if factor != 1 and present:
            torch._foreach_mul_(present, factor)  # one call for all of them

    def release(self) -> None:
        """Leaves the parameters without gradients."""
        self.begin()


class SharedGradients(Gradients):
    """Gradients summed over all instances of the job.

    In the last backward pass, a hook moves each gradient into the exchange's flat buffer as soon as
    it is complete; full slices leave while the pass goes on. A small vector travels along that
    counts who had a gradient at all, so that a parameter unused by every replica of the job stays
    without one, as it would in one process.

    Args:
        parameters: What is trained, in the order of the model.
        names: Their names.
        horovod: The module ``horovod.torch``, initialised.
        label: Prefix for the names of what travels; equal on all instances.
    """

    def __init__(
        self, parameters: Sequence[torch.Tensor], names: Sequence[str], horovod: Any, label: str
    ) -> None:
        # Backward passes complete the last layer's gradients first.
        super().__init__(list(reversed(parameters)))
        items = [
            Item(name, p.numel(), str(p.dtype).removeprefix("torch."), p.element_size())
            for name, p in zip(reversed(names), self._parameters, strict=True)
        ]
        # Of the most common type, so that it usually travels in the last slice of the gradients.
        items.append(Item(_USED, len(items), "float32", 4))
        layout = plan(items)
        device = self._parameters[0].device
        self._arenas = allocate(layout, device=device)
        shapes = [tuple(p.shape) for p in self._parameters] + [(len(self._parameters),)]
        *self._views, self._used = views(layout, self._arenas, shapes)
        self._exchange = Exchange(layout, self._arenas, horovod, name=label)
        self._collected: set[int] = set()
        self._last = False
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._hook(i))  # type: ignore[no-untyped-call]
            for i, p in enumerate(self._parameters)
        ]

    def begin(self) -> None:
        """Starts an update without gradients."""
        super().begin()
        self._exchange.begin()
        self._collected.clear()
        self._used.zero_()

    def backward(self, loss: torch.Tensor, seed: float, *, last: bool) -> None:
        """Adds the gradients of one replica's micro-batch; sends them off if they are the last.

        Args:
            loss: The loss, of any shape; the sum of its elements is differentiated.
            seed: Factor of the gradients.
            last: Whether no other backward pass of this process follows in this update.
        """
        self._last = last
        super().backward(loss, seed, last=last)
        self._last = False

    def end(self, factor: float) -> None:
        """Waits for the sums of all instances, which become the parameters' gradients.

        Args:
            factor: What to multiply them with.
        """
        for index in range(len(self._parameters)):
            if index not in self._collected:
                self._collect(index)
        self._exchange.ready(len(self._parameters))
        self._exchange.finish()
        used = self._used.tolist()
        for parameter, view, count in zip(self._parameters, self._views, used, strict=True):
            parameter.grad = view if count else None
        super().end(factor)

    def release(self) -> None:
        """Leaves the parameters without gradients and hooks."""
        Gradients.begin(self)
        for hook in self._hooks:
            hook.remove()

    def _hook(self, index: int) -> Any:
        def collect(_parameter: torch.Tensor) -> None:
            if self._last:
                self._collect(index)

        return collect

    def _collect(self, index: int) -> None:
        gradient = self._parameters[index].grad
        if gradient is None:
            self._views[index].zero_()
        else:
            self._views[index].copy_(gradient.to_dense() if gradient.is_sparse else gradient)
            self._used[index] = 1
        self._collected.add(index)
        self._exchange.ready(index)
