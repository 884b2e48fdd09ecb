"""Samplers that hand a process its own part of the order."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING

import torch
from torch.utils.data import Sampler

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from popdist_torch.data.partition import Share


class PartitionSampler(Sampler[int]):
    """Reads one process's share, shuffled alike in all processes.

    The permutation is one of the whole set, drawn from a generator of its own that continues from
    epoch to epoch, so processes agree on it without talking, and whatever else they draw. It lives
    in the main process: data workers get indices only, which suits persistent ones too.

    Args:
        length: Samples of the whole set.
        share: This process's range.
        seed: Seed of the permutations; None reads in order.
    """

    def __init__(self, length: int, share: Share, *, seed: int | None) -> None:
        self._length = length
        self._share = share
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)
        self._epoch = 0

    def __len__(self) -> int:
        return len(self._share)

    def __iter__(self) -> Iterator[int]:
        positions = self._share.positions(self._epoch)
        self._epoch += 1
        if self._generator is None:
            return iter(positions)
        order = torch.randperm(self._length, generator=self._generator)
        indices: list[int] = order[positions.start : positions.stop].tolist()
        return iter(indices)


class GroupedBatchSampler(Sampler[list[int]]):
    """Joins the micro-batches of a program's own sampler to the combined batches of a call.

    Args:
        batches: The program's sampler of micro-batches.
        group: Micro-batches per combined batch.
        drop_last: Whether an incomplete last group is left out.
    """

    def __init__(self, batches: Iterable[list[int]], group: int, *, drop_last: bool) -> None:
        self._batches = batches
        self._group = group
        self._drop_last = drop_last

    def __len__(self) -> int:
        whole, rest = divmod(len(self._batches), self._group)  # type: ignore[arg-type]
        return whole + (rest > 0 and not self._drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        batches = iter(self._batches)
        while group := list(islice(batches, self._group)):
            if len(group) == self._group or not self._drop_last:
                yield list(chain.from_iterable(group))
