"""Data of unknown length: all instances end together, or say that they did not."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import torch

from popdist_torch import job
from popdist_torch.errors import DataError
from popdist_torch.rounds import ROUNDS, Call

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from popdist_torch.options import Options

Batch = TypeVar("Batch")

_END = object()
_CALL = Call("the next batch of in_step")


def in_step(
    batches: Iterable[Batch], options: Options, *, stop_early: bool = False
) -> Iterator[Batch]:
    """Iterates over batches while every instance has one.

    What `popdist_torch.DataLoader` divides has equal lengths, and what has a length is compared on
    the first step. An ``IterableDataset`` that a program divides itself has none: an instance that
    ends early leaves the others waiting for its gradients. Here all instances ask each other before
    every batch, which is a small sum and a small allgather. All of them must iterate.

    Args:
        batches: A loader, or anything else that can be iterated over.
        options: Its options.
        stop_early: Whether all instances end with the first that does, which leaves batches of the
            others out.

    Yields:
        The batches.

    Raises:
        DataError: Some instances have another batch and some have not; raised on all of them.
        AgreementError: Some instances do something else, such as training on.
    """
    here = options.placement
    if here.num_processes == 1:
        yield from batches
        return
    horovod = job.require(here)
    iterator = iter(batches)
    count = 0
    while True:
        batch = next(iterator, _END)
        ROUNDS.meet(_CALL, horovod)
        mine = torch.tensor([batch is not _END], dtype=torch.uint8)
        more = horovod.allgather(mine, name="popdist.in_step").tolist()
        if not all(more):
            break
        count += 1
        yield batch  # type: ignore[misc]  # no end, as all have more
    if any(more) and not stop_early:
        ended = [str(index) for index, has in enumerate(more) if not has]
        raise DataError(
            "PD302",
            "the instances' data are not equally long",
            value=f"instance {', '.join(ended)} ended after {count} batches, others have more",
            accepted="as many batches on every instance",
            hint="divide the data evenly, or pass stop_early=True to leave out what is over",
        )
