"""Exchanges between all replicas of the job in the middle of a model.

Local replicas meet (`popdist_torch.ops.turns`), and what they have goes through Horovod together.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from popdist import backend
from popdist_torch.errors import CustomOperatorError
from popdist_torch.ops.running import placement
from popdist_torch.ops.turns import present_turn
from popdist_torch.options.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Callable

    Values = list[torch.Tensor]
    Join = Callable[[Values, Any], Values]
    """Makes of the values of all local replicas, and the module ``horovod.torch`` or None for a job
    of one process, a result for each."""


class Replica:
    """The replica that runs; outside of a wrapped model, the process.

    Args:
        operator: What wants to exchange, for messages.

    Attributes:
        index: Its index among the replicas of the job.
        total: The replicas of the job.

    Raises:
        CustomOperatorError: Several replicas share this process, and cannot wait for each other.
    """

    def __init__(self, operator: str) -> None:
        here, turn = placement() or Placement(), present_turn()
        if here.local_replicas > 1 and turn is None:
            raise CustomOperatorError(
                "PD364",
                f"{operator} cannot be called here: local replicas meet while a wrapped model runs",
                value=f"{here.local_replicas} local replicas",
                hint="start as many instances as replicas (poprun --num-instances=N "
                "--num-replicas=N)",
            )
        self._turn = turn
        if turn is not None:
            turn[0].meets = True  # in the backward pass, if not in this one
        self._processes = here.num_processes
        self.index = here.first_replica + (0 if turn is None else turn[1])
        self.total = here.total_replicas

    def exchange(self, value: torch.Tensor, join: Join, horovod: Any = None) -> torch.Tensor:
        """What the replica gets of a collective; all replicas of the job must call it.

        Args:
            value: What it gives.
            join: The collective.
            horovod: The module ``horovod.torch``, initialised; by default that of the model's job.
        """
        if horovod is None and self._processes > 1:
            horovod = backend.connect("torch", self._processes)
        if self._turn is None:
            return join([value], horovod)[0]
        turns, local = self._turn
        result: torch.Tensor = turns.meet(local, value, lambda values: join(values, horovod))
        return result


def gathered(values: Values, horovod: Any, name: str | None = None) -> Values:
    """The values of all replicas along a new first dimension, for each local one."""
    stacked = torch.stack(values)
    of_all = stacked if horovod is None else horovod.allgather(stacked, name=name)
    return [of_all.clone() for _ in values]


def summed(values: Values, horovod: Any, name: str | None = None) -> Values:
    """The sum over all replicas, for each local one."""
    total = torch.stack(values).sum(0)
    if horovod is not None:
        total = horovod.allreduce(total, op=horovod.Sum, name=name)
    return [total.clone() for _ in values]


class _Total(torch.autograd.Function):
    """A sum over all replicas, whose gradient is the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, total: Callable[[torch.Tensor], Any]) -> Any:
        """Exchanges the value."""
        ctx.total = total
        return total(value.contiguous())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, None]:
        """Exchanges the gradient, which may have a gradient itself."""
        return _Total.apply(gradients[0], ctx.total), None  # type: ignore[no-untyped-call]


def total_of(
    replica: Replica, value: torch.Tensor, horovod: Any = None, name: str | None = None
) -> torch.Tensor:
    """The sum over all replicas, with gradients of any order; all of them must call it.

    Args:
        replica: The replica that runs.
        value: What it gives.
        horovod: As in `Replica.exchange`.
        name: The name of what is sent; equal on all instances.
    """
    total = partial(replica.exchange, join=partial(summed, name=name), horovod=horovod)
    result: torch.Tensor = _Total.apply(value, total)  # type: ignore[no-untyped-call]
    return result
