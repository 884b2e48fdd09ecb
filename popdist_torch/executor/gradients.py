"""The gradients of one weight update: accumulated by backward passes, summed over instances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.executor.instance_sum import InstanceSum

if TYPE_CHECKING:
    from collections.abc import Sequence


class Gradients:
    """Gradients of one process's parameters, in their ``grad`` attributes.

    One update is `begin`, a `backward` per micro-batch and replica, `end`.

    Args:
        parameters: What is trained, in the order of the model.

    Attributes:
        waited: Seconds spent waiting for other instances since the object was made.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self.waited = 0.0
        self._parameters = list(parameters)

    def begin(self) -> None:
        """Starts an update without gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def backward(self, loss: torch.Tensor, seed: float, *, replica: int, last: bool) -> None:
        """Adds the gradients of one replica's micro-batch.

        Args:
            loss: The loss, of any shape; the sum of its elements is differentiated.
            seed: Factor of the gradients.
            replica: Local index of the replica.
            last: Whether no other backward pass of this process follows in this update.
        """
        del replica, last
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
        Gradients.begin(self)


class SharedGradients(Gradients):
    """Gradients summed over all instances of the job.

    In the last backward pass, a hook notes each gradient that is complete; slices of the exchange
    whose gradients all are leave while the pass goes on.

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
        self._sum = InstanceSum(self._parameters, list(reversed(names)), horovod, label)
        self._last = False
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._hook(i))  # type: ignore[no-untyped-call]
            for i, p in enumerate(self._parameters)
        ]

    def begin(self) -> None:
        """Starts an update without gradients."""
        super().begin()
        self._sum.begin()

    def backward(self, loss: torch.Tensor, seed: float, *, replica: int, last: bool) -> None:
        """Adds the gradients of one replica's micro-batch; sends them off if they are the last.

        Args:
            loss: The loss, of any shape; the sum of its elements is differentiated.
            seed: Factor of the gradients.
            replica: Local index of the replica.
            last: Whether no other backward pass of this process follows in this update.
        """
        self._last = last
        super().backward(loss, seed, replica=replica, last=last)
        self._last = False

    def end(self, factor: float) -> None:
        """Waits for the sums of all instances, which become the parameters' gradients.

        Args:
            factor: What to multiply them with.
        """
        self._sum.finish()
        self.waited = self._sum.waited
        super().end(factor)

    def release(self) -> None:
        """Leaves the parameters without gradients and hooks."""
        super().release()
        for hook in self._hooks:
            hook.remove()

    def _hook(self, index: int) -> Any:
        def collect(_parameter: torch.Tensor) -> None:
            if self._last:
                self._sum.collect(index)

        return collect
