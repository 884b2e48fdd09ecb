"""``Collater``: joins graphs without padding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_geometric.data import Batch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Collater"]


class Collater:
    """Joins graphs into a batch.

    Args:
        follow_batch: Keys that get a vector of assignments.
        exclude_keys: Keys that are not in a batch.
    """

    def __init__(
        self, follow_batch: Sequence[str] | None = None, exclude_keys: Sequence[str] | None = None
    ) -> None:
        self._settings = list(follow_batch or ()), list(exclude_keys or ())

    def __call__(self, batch: list[Any]) -> Any:
        """The batch of some graphs."""
        return Batch.from_data_list(batch, *self._settings)
