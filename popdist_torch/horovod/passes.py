"""The backward passes of a plain loop, and the exchange of what they leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from popdist_torch import agreement
from popdist_torch.errors import PlainLoopError
from popdist_torch.gradient_exchange import InstanceSum

if TYPE_CHECKING:
    from collections.abc import Mapping


class Passes:
    """Counts the gradients of each parameter, and sends the last of a step on its way.

    The first step's gradients all leave at its end, after the check that all processes train the
    same parameters: sums of others would be meaningless, or never come.

    Args:
        optimizer: The optimizer whose gradients they are.
        named: Its parameters that require gradients.
        horovod: The module ``horovod.torch``, initialised.
        per_step: Backward passes per step.
        factors: What gradients are multiplied with before and after they are added up.
        wire: The type in which gradients travel; None for their own.
        dense: Whether sparse gradients may become dense.
        check: Whether the first step compares the processes.
        label: Prefix for the names of what travels; equal on all processes.

    Attributes:
        per_step: Backward passes per step.
        sum: The exchange; None before the first step.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named: Mapping[str, torch.Tensor],
        horovod: Any,
        *,
        per_step: int,
        factors: tuple[float, float],
        wire: torch.dtype | None,
        dense: bool,
        check: bool,
        label: str,
    ) -> None:
        self.per_step = per_step
        self.sum: InstanceSum | None = None
        self._optimizer = optimizer
        self._names: list[str] = [*named][::-1]
        self._parameters = [named[name] for name in self._names]
        self._horovod = horovod
        self._factors = factors
        self._wire = wire
        self._dense = dense
        self._check = check
        self._label = label
        self._counts = [0] * len(self._parameters)
        self._synchronized = False
        for index, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                self._hook(index)
            )

    def synchronize(self) -> None:
        """Makes the gradients of all parameters those of all processes.

        Nothing happens where that was done since the last step, and no backward pass has run after.

        Raises:
            AgreementError: The first step's check failed; raised on all processes.
            BackendError: Another process ended or failed meanwhile.
        """
        # Processes decide alike here: one whose passes reached no parameter still takes part.
        if self._synchronized and not any(self._counts):
            return
        if self.sum is None:
            self._begin()
        assert self.sum is not None  # noqa: S101 - set by _begin
        after = self._factors[1]
        self.sum.finish()
        present = [p.grad for p in self._parameters if p.grad is not None]
        if after != 1 and present:
            torch._foreach_mul_(present, after)  # one call for all of them
        self._counts = [0] * len(self._parameters)
        self.sum.begin()
        self._synchronized = True

    def stepped(self) -> None:
        """Notes that the gradients were used for an update."""
        self._synchronized = False

    def require_idle(self) -> None:
        """Checks that no gradient is on its way.

        Raises:
            PlainLoopError: One is.
        """
        if any(count >= self.per_step for count in self._counts):
            raise PlainLoopError(
                "PD308",
                "zero_grad() was called after backward() and before step() or synchronize()",
                hint="call zero_grad() before backward(), or after step()",
            )

    def _begin(self) -> None:
        if self._check:
            stated = agreement.optimizer_facts(self._optimizer)
            stated |= agreement.parameter_facts(zip(self._names, self._parameters, strict=True))
            stated |= {
                "order of parameters": ", ".join(self._names),
                "name of the exchange": self._label,
                "backward_passes_per_step": str(self.per_step),
                "factors": str(self._factors),
            }
            agreement.require(stated, self._horovod)
        self.sum = InstanceSum(
            self._parameters,
            self._names,
            self._horovod,
            self._label,
            wire=self._wire,
            factor=self._factors[0],
        )
        self.sum.begin()

    def _hook(self, index: int) -> Any:
        def count(parameter: torch.Tensor) -> None:
            self._counts[index] += 1
            if self._counts[index] > self.per_step:
                raise PlainLoopError(
                    "PD308",
                    f"{self._names[index]} got more gradients than backward_passes_per_step before "
                    "step()",
                    value=f"{self._counts[index]} gradients",
                    accepted=f"{self.per_step}",
                    hint="give DistributedOptimizer the number of backward passes per step",
                )
            if parameter.grad is not None and parameter.grad.is_sparse and not self._dense:
                raise PlainLoopError(
                    "PD308",
                    f"{self._names[index]} has a sparse gradient",
                    accepted="dense gradients",
                    hint="sparse_as_dense=True sums them as dense ones",
                )
            if self.sum is not None and self._counts[index] == self.per_step:
                self.sum.collect(index)

        return count
