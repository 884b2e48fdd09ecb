"""Joins small batches to full ones, without copying."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from popdist_torch.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def rebatched(batches: Iterable[Any], size: int, *, keep_rest: bool) -> Iterator[list[Any]]:
    """Regroups rows.

    Args:
        batches: Batches of any numbers of rows, of equal nesting.
        size: Rows that belong together.
        keep_rest: Whether what is left over at the end comes as well.

    Yields:
        Parts of the batches, in order, whose rows add up to ``size``.
    """
    parts: list[Any] = []
    missing = size
    for whole in batches:
        batch, rows = whole, _rows(whole)
        while rows >= missing:
            parts.append(_cut(batch, 0, missing))
            yield parts
            batch, rows = _cut(batch, missing, rows), rows - missing
            parts, missing = [], size
        if rows:
            parts.append(batch)
            missing -= rows
    if parts and keep_rest:
        yield parts


def _rows(batch: Any) -> int:
    leaves = pytree.tree_leaves(batch)
    counts = {len(x) if isinstance(x, torch.Tensor) and x.dim() else None for x in leaves}
    if len(counts) != 1 or None in counts:
        raise DataError(
            "PD302",
            "batches can be joined only where they are tensors with equally many rows",
            value=[tuple(x.shape) if isinstance(x, torch.Tensor) else x for x in leaves],
            hint="return tensors from the data set, or use DataLoaderMode.Async",
        )
    return int(counts.pop() or 0)


def _cut(batch: Any, start: int, stop: int) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor[start:stop], batch)
