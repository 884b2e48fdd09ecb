"""What of the data a process reads in a plain loop: steps 2 and 4 of Horovod's six."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils import data

from popdist_torch.errors import PlainLoopError
from popdist_torch.horovod.world import rank, size

if TYPE_CHECKING:
    from collections.abc import Sized


def local_batch_size(global_batch_size: int) -> int:
    """This process's part of a global batch.

    Args:
        global_batch_size: Samples of one update of the whole job.

    Returns:
        Samples of this process.

    Raises:
        PlainLoopError: The batch does not divide; leaving out its rest would train another model.
    """
    count = size()
    if global_batch_size < 1 or global_batch_size % count:
        raise PlainLoopError(
            "PD308",
            "the global batch size cannot be divided over the processes",
            value=f"{global_batch_size} samples, {count} processes",
            accepted=f"a multiple of {count}",
        )
    return global_batch_size // count


class DistributedSampler(data.distributed.DistributedSampler[Any]):
    """Torch's sampler, for this process of this job.

    Call ``set_epoch`` before each epoch, or all epochs have the same order.

    Args:
        dataset: The data; the same in every process.
        shuffle: Whether to shuffle, alike in all processes.
        seed: Of the order; the same in every process.
        drop_last: Whether samples that do not divide are left out; by default some are repeated, so
            that all processes take as many steps.
    """

    def __init__(
        self, dataset: Sized, *, shuffle: bool = True, seed: int = 0, drop_last: bool = False
    ) -> None:
        super().__init__(
            dataset,  # type: ignore[arg-type]  # torch asks for a Dataset and uses its length only
            num_replicas=size(),
            rank=rank(),
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
        )
