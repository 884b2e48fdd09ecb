"""Means over all elements of a global batch, where its parts have different numbers of them.

A mean over the valid tokens of each micro-batch, averaged over micro-batches and processes, counts
a token less where there are more. `global_mean` counts all elements of an update alike.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch

from popdist import backend
from popdist_torch.errors import LossError
from popdist_torch.executor.weights import a_model_runs
from popdist_torch.ops.hints import identity_loss
from popdist_torch.rounds import ROUNDS, Call

if TYPE_CHECKING:
    from collections.abc import Iterator

_CALL = Call("global_mean")


def global_mean(total: torch.Tensor, count: torch.Tensor | float) -> torch.Tensor:
    """The mean over all elements of a global batch, from a sum and a number of each part.

    In ``forward`` of a `trainingModel` it makes the micro-batch count as much as its number of
    elements, over accumulation steps, replicas and instances; so does what ``forward`` adds to the
    loss. The result is the mean of the micro-batch.

    In a plain loop the result is this process's part of the mean: the average over processes, as
    `DistributedOptimizer` computes it of gradients, is the mean over all of them. All processes
    must call it. If several backward passes make an update, ``count`` is the number of elements of
    all of them.

    Args:
        total: The sum over the elements, such as ``cross_entropy(scores, y, reduction="sum")``.
        count: Their number, or the sum of their weights; it may be zero.

    Returns:
        A scalar loss.

    Raises:
        AgreementError: Other processes call something else.

    Example:
        ::

            loss = cross_entropy(scores, y, ignore_index=-100, reduction="sum")
            loss = popdist_torch.global_mean(loss, (y != -100).sum())
    """
    number = float(count)
    if a_model_runs():
        noted = _noted.get()
        if noted is not None:
            noted.append(number)
        return identity_loss(_divided(total, number), "none")
    horovod = backend.started("torch")
    if horovod is None or horovod.size() == 1 or not torch.is_grad_enabled():
        return _divided(total, number)
    ROUNDS.meet(_CALL, horovod)
    counts = torch.tensor([number], dtype=torch.float64)
    average = horovod.allreduce(counts, op=horovod.Average, name="popdist global_mean")
    return _divided(total, float(average))


def _divided(total: torch.Tensor, number: float) -> torch.Tensor:
    # A sum of no elements has no gradient; its mean is zero, and not 0 / 0.
    return total * (1 / number if number else 0.0)


_noted: ContextVar[list[float] | None] = ContextVar("numbers of elements", default=None)
"""The numbers of elements of the micro-batch whose ``forward`` runs."""


@contextmanager
def counting() -> Iterator[list[float]]:
    """Collects the numbers of elements that a forward pass gives to `global_mean`.

    Yields:
        The numbers, complete when the pass has ended.
    """
    counts: list[float] = []
    token = _noted.set(counts)
    try:
        yield counts
    finally:
        _noted.reset(token)


class MicroBatchWeights:
    """How much each micro-batch of an update counts.

    Args:
        horovod: The module ``horovod.torch``, initialised; None for a job of one instance.
        label: Prefix for the name of the exchanged tensor; equal on all instances.
        divisor: What the sum of all gradients is divided by.
    """

    def __init__(self, horovod: Any, label: str, divisor: float) -> None:
        self._horovod = horovod
        self._name = f"{label}.counts"
        self._divisor = divisor
        self._counts: list[float | None] = []

    @contextmanager
    def forward_pass(self) -> Iterator[None]:
        """Surrounds the forward pass of a micro-batch.

        Raises:
            LossError: It has called `global_mean` several times.
        """
        with counting() as counts:
            yield
        if len(counts) > 1:
            raise LossError(
                "PD339",
                "forward calls global_mean several times, and a micro-batch has one number of "
                "elements",
                value=counts,
                hint="add up the sums first: global_mean(first + second, count)",
            )
        self._counts.append(counts[0] if counts else None)

    @property
    def weight(self) -> float:
        """What the last micro-batch's gradients are multiplied by."""
        last = self._counts[-1]
        return 1.0 if last is None else last

    def factor(self) -> float:
        """What the gradients of an update are multiplied by, when they are those of all instances.

        Raises:
            LossError: Some micro-batches have called `global_mean`, and others have not.
        """
        counts, self._counts = self._counts, []
        known = [count for count in counts if count is not None]
        if not known:
            return 1.0
        if len(known) < len(counts):
            raise LossError(
                "PD339",
                "forward has called global_mean in some micro-batches of an update only",
                value=f"{len(known)} of {len(counts)}",
                hint="call it in each forward pass; the count of a micro-batch may be zero",
            )
        total = torch.tensor([sum(known)], dtype=torch.float64)
        if self._horovod is not None:
            total = self._horovod.allreduce(total, op=self._horovod.Sum, name=self._name)
        return self._divisor / float(total) if float(total) else 0.0
