"""Stops a job at the first loss that is no number, on all instances, and says where it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.errors import NotFiniteError

if TYPE_CHECKING:
    from popdist_torch.options.placement import Placement


class LossGuard:
    """Watches the losses of one update after the other.

    Where a loss is infinite or not a number, all instances raise the same error before the update,
    so that the weights are still those of the update before. That costs one small allreduce an
    update.

    Args:
        here: The local replicas' place in the job.
        horovod: The module ``horovod.torch``, initialised; None for a job of one instance.
        label: Prefix for the name of what travels; equal on all instances.
    """

    def __init__(self, here: Placement, horovod: Any, label: str) -> None:
        self._here = here
        self._horovod = horovod
        self._name = f"{label}.losses"
        self._updates = 0
        # For every replica of the job the first bad accumulation step, counted from 1.
        self._bad = torch.zeros(here.total_replicas)

    def watch(self, loss: torch.Tensor, step: int, replica: int) -> None:
        """Looks at the loss of one micro-batch.

        Args:
            loss: The loss.
            step: Accumulation step, from 0.
            replica: Local index of the replica.
        """
        index = self._here.first_replica + replica
        if not self._bad[index] and not bool(torch.isfinite(loss.detach()).all()):
            self._bad[index] = step + 1

    def require_finite(self, iteration: int) -> None:
        """Ends an update.

        Args:
            iteration: Device iteration, from 0.

        Raises:
            NotFiniteError: A loss of some replica of the job was infinite or not a number.
        """
        bad = self._bad
        if self._horovod is not None:
            bad = self._horovod.allreduce(bad, op=self._horovod.Sum, name=self._name)
        self._bad = torch.zeros_like(self._bad)
        self._updates += 1
        found = [(index, int(step) - 1) for index, step in enumerate(bad.tolist()) if step]
        if found:
            where = "; ".join(f"replica {index}, accumulation step {step}" for index, step in found)
            raise NotFiniteError(
                "PD309",
                f"a loss is infinite or not a number in update {self._updates} (device iteration "
                f"{iteration} of its call), which was not made",
                value=where,
                hint="look at the data of that micro-batch; a lower learning rate or loss scaling, "
                "or clipping, helps where losses grow first",
            )
