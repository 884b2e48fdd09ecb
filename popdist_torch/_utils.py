"""PopTorch's private helpers that public libraries use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def combine_batch_tensors_gen(tensors: Sequence[Sequence[torch.Tensor]]) -> Iterator[torch.Tensor]:
    """Concatenates batches.

    Args:
        tensors: The tensors of each batch, as many in each.

    Yields:
        For each tensor, the rows of all batches.
    """
    for parts in zip(*tensors, strict=True):
        yield torch.cat(parts)
