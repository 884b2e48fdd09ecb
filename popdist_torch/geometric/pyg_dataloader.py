"""Torch's own loaders of graphs with one fixed size: one batch of one process at a time.

`popdist_torch.geometric.dataloader` has those whose batches feed a wrapped model.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.utils.data import RandomSampler, SequentialSampler
from torch_geometric.data import HeteroData

from popdist_torch.geometric.collate import FixedSizeCollater
from popdist_torch.geometric.fixed_size_options import FixedSizeOptions
from popdist_torch.geometric.pyg_collate import Collater
from popdist_torch.geometric.stream_packing_sampler import StreamPackingSampler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["DataLoader", "FixedSizeDataLoader", "FixedSizeStrategy", "OverSizeStrategy"]


class FixedSizeStrategy(Enum):
    """How batches get a fixed size.

    Attributes:
        PadToMax: As many real graphs in each batch, and one of padding.
        StreamPack: As many graphs as fit, in the order of the data.
    """

    PadToMax = 0
    StreamPack = 1


class OverSizeStrategy(Enum):
    """The treatment of graphs that do not fit.

    Attributes:
        Error: An error.
        Skip: They are left out.
        TrimNodes: Random nodes are removed.
        TrimEdges: Random edges are removed.
        TrimNodesAndEdges: Both.
    """

    Error = 0
    Skip = 1
    TrimNodes = 2
    TrimEdges = 3
    TrimNodesAndEdges = 4

    @property
    def trims(self) -> dict[str, Any]:
        """The arguments of `FixedSizeCollater`."""
        both = self is OverSizeStrategy.TrimNodesAndEdges
        return {
            "trim_nodes": both or self is OverSizeStrategy.TrimNodes,
            "trim_edges": both or self is OverSizeStrategy.TrimEdges,
        }


def single(collater: Any, mini_batch_size: int | None = None) -> Any:  # noqa: ARG001 - as CombinedBatchingCollater
    """The collater of a loader that joins the graphs of one batch only."""
    return collater


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Joins graphs into batches, of any size.

    Args:
        dataset: The graphs.
        batch_size: Graphs of a batch.
        shuffle: Whether each epoch has another order.
        follow_batch: Keys that get a vector of assignments.
        exclude_keys: Keys that are not in a batch.
        **kwargs: As for ``torch.utils.data.DataLoader``.
    """

    _combined: ClassVar[Callable[..., Any]] = staticmethod(single)

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        follow_batch: Sequence[str] | None = None,
        exclude_keys: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs["collate_fn"] = self._combined(Collater(follow_batch, exclude_keys), batch_size)
        super().__init__(dataset=dataset, batch_size=batch_size, shuffle=shuffle, **kwargs)


class FixedSizeDataLoader(torch.utils.data.DataLoader[Any]):
    """Joins graphs into batches of one size, with graphs of padding.

    Args:
        dataset: The graphs.
        batch_size: Graphs of a batch, of which one is padding.
        shuffle: Whether each epoch has another order.
        fixed_size_options: The size of a batch; by default one that fits all of the data.
        fixed_size_strategy: How batches get that size.
        over_size_strategy: What happens to graphs that do not fit.
        add_pad_masks: Whether a batch has masks of what is real.
        follow_batch: Keys that get a vector of assignments.
        exclude_keys: Keys that are not in a batch.
        **kwargs: As for ``torch.utils.data.DataLoader``.

    Raises:
        ValueError: A ``batch_sampler`` contradicts the strategy.
        AssertionError: ``batch_size`` is not the number of graphs of the options.
    """

    _combined: ClassVar[Callable[..., Any]] = staticmethod(single)

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 2,
        shuffle: bool = False,
        fixed_size_options: FixedSizeOptions | None = None,
        fixed_size_strategy: FixedSizeStrategy = FixedSizeStrategy.PadToMax,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.Error,
        add_pad_masks: bool | None = True,
        follow_batch: Sequence[str] | None = None,
        exclude_keys: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        size = fixed_size_options or FixedSizeOptions.from_dataset(dataset, batch_size)
        first = dataset[0]
        if isinstance(first, HeteroData) and not size.is_hetero():
            size.to_hetero(first.node_types, first.edge_types)
        if batch_size != size.num_graphs:
            raise AssertionError(
                "`num_graphs` in fixed size options must match provided batch size in dataloader. "
                f"`num_graphs` is {size.num_graphs} but batch size is {batch_size}."
            )
        if "collate_fn" in kwargs:
            raise AssertionError(f"Cannot set `collate_fn` with `{type(self).__name__}`.")
        self.fixed_size_options = size
        sampler = kwargs.pop("batch_sampler", None)
        if fixed_size_strategy == FixedSizeStrategy.StreamPack:
            if sampler is not None:
                raise ValueError(
                    f"Fixed size strategy {fixed_size_strategy} is incompatible with the provided "
                    f"batch_sampler {sampler}."
                )
            sampler = StreamPackingSampler(
                dataset,
                batch_size - 1,
                max_num_nodes=size.total_num_nodes - 1,
                max_num_edges=size.total_num_edges - 1,
                base_sampler=self._order(dataset, shuffle),
                allow_skip_data=over_size_strategy == OverSizeStrategy.Skip,
            )
            kwargs.update(self._dealt(dataset, sampler))
        elif sampler is not None:
            kwargs.update(self._packed(dataset, sampler))
        else:
            kwargs.update(dataset=dataset, batch_size=batch_size - 1, shuffle=shuffle)
        collater = FixedSizeCollater(
            size,
            add_masks_to_batch=add_pad_masks,
            follow_batch=follow_batch,
            exclude_keys=exclude_keys,
            **over_size_strategy.trims,
        )
        graphs = kwargs.get("batch_size")  # otherwise the sampler knows how many
        super().__init__(collate_fn=self._combined(collater, graphs), **kwargs)

    def _order(self, dataset: Any, shuffle: bool) -> Any:
        """The order of graphs that are packed."""
        return RandomSampler(dataset) if shuffle else SequentialSampler(dataset)

    def _dealt(self, dataset: Any, sampler: Any) -> dict[str, Any]:
        """The arguments for batches that `StreamPackingSampler` has packed."""
        return self._packed(dataset, sampler)

    def _packed(self, dataset: Any, sampler: Any) -> dict[str, Any]:
        """The arguments for batches of a sampler."""
        return {"dataset": dataset, "batch_sampler": sampler}
