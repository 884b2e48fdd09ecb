"""``DataLoader`` and ``FixedSizeDataLoader``: combined batches of graphs."""

from __future__ import annotations

import logging
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Dataset, RandomSampler, SequentialSampler
from torch_geometric.data import Batch, HeteroData

from popdist_torch.data.loader import DataLoader as Loader
from popdist_torch.data.loader_plan import require
from popdist_torch.geometric.collate import CombinedBatchingCollater, FixedSizeCollater
from popdist_torch.geometric.fixed_size_options import FixedSizeOptions
from popdist_torch.geometric.stream_packing_sampler import StreamPackingSampler
from popdist_torch.options import Options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

logger = logging.getLogger("popdist.torch")

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
    """What happens to graphs that do not fit.

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


class DataLoader(Loader):
    """Joins graphs into batches, of any size.

    Args:
        dataset: The graphs.
        batch_size: Graphs of a batch of one replica.
        shuffle: Whether each epoch has another order.
        follow_batch: Keys that get a vector of assignments.
        exclude_keys: Keys that are not in a batch.
        options: Those of the model.
        **kwargs: As for `popdist_torch.DataLoader`.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        follow_batch: Sequence[str] | None = None,
        exclude_keys: Sequence[str] | None = None,
        options: Options | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.pop("collate_fn", None)
        follow, exclude = list(follow_batch or ()), list(exclude_keys or ())
        collater = CombinedBatchingCollater(Join(follow, exclude), batch_size)
        super().__init__(
            Options() if options is None else options,
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            collate_fn=collater,
            **kwargs,
        )


class Join:
    """Joins graphs without padding; a class, as data workers may have to pickle it."""

    def __init__(self, follow_batch: list[str], exclude_keys: list[str]) -> None:
        self._settings = follow_batch, exclude_keys

    def __call__(self, graphs: list[Any]) -> Any:
        """The batch of some graphs."""
        return Batch.from_data_list(graphs, *self._settings)


class FixedSizeDataLoader(Loader):
    """Joins graphs into batches of one size, with graphs of padding.

    Args:
        dataset: The graphs.
        batch_size: Graphs of a batch of one replica, of which one is padding.
        shuffle: Whether each epoch has another order.
        fixed_size_options: The size of a batch; by default one that fits all of the data.
        fixed_size_strategy: How batches get that size.
        over_size_strategy: What happens to graphs that do not fit.
        add_pad_masks: Whether a batch has masks of what is real.
        follow_batch: Keys that get a vector of assignments.
        exclude_keys: Keys that are not in a batch.
        options: Those of the model. In a job of several instances, ``StreamPack`` gives each
            instance every n-th batch, and shuffles with ``options.randomSeed``.
        **kwargs: As for `popdist_torch.DataLoader`.

    Raises:
        ValueError: A ``batch_sampler`` contradicts the strategy.
        AssertionError: ``batch_size`` is not the number of graphs of the options.
    """

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
        options: Options | None = None,
        **kwargs: Any,
    ) -> None:
        options = Options() if options is None else options
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
                base_sampler=_order(dataset, shuffle, options),
                allow_skip_data=over_size_strategy == OverSizeStrategy.Skip,
            )
            here = options.placement
            sampler = Dealt(sampler, here.process_id, here.num_processes)
            kwargs["auto_distributed_partitioning"] = False
        collater = FixedSizeCollater(
            size,
            add_masks_to_batch=add_pad_masks,
            follow_batch=follow_batch,
            exclude_keys=exclude_keys,
            **over_size_strategy.trims,
        )
        if sampler is None:
            batching: dict[str, Any] = {"batch_size": batch_size - 1, "shuffle": shuffle}
            joined = CombinedBatchingCollater(collater, batch_size - 1)
        else:
            dataset, batching = Packs(dataset), {"batch_sampler": OfPacks(sampler)}
            joined = CombinedBatchingCollater(collater)
        super().__init__(options, dataset, collate_fn=joined, **batching, **kwargs)


class Packs(Dataset[Any]):
    """A data set whose elements are lists of graphs.

    Args:
        dataset: The graphs.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitem__(self, indices: tuple[int, ...]) -> list[Any]:
        return [self._dataset[index] for index in indices]

    def __len__(self) -> int:
        return len(self._dataset)


class OfPacks:
    """A sampler whose batches are one element of `Packs` each.

    Args:
        sampler: Gives the indices of each list of graphs.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[list[Any]]:
        return ([tuple(indices)] for indices in self._sampler)

    def __len__(self) -> int:
        return len(self._sampler)


class Dealt:
    """Every n-th batch of a sampler; as many for each of n processes.

    Args:
        sampler: The same one in each process.
        index: The process.
        count: n.
    """

    def __init__(self, sampler: Any, index: int, count: int) -> None:
        self._sampler, self._index, self._count = sampler, index, count

    def __iter__(self) -> Iterator[list[int]]:
        group: list[list[int]] = []
        rounds = 0
        for batch in self._sampler:
            group.append(batch)
            if len(group) == self._count:
                yield group[self._index]
                group, rounds = [], rounds + 1
        if not rounds:
            logger.warning(
                "the loader has no batch: %d packed batches cannot be divided over %d instances",
                len(group),
                self._count,
            )

    def __len__(self) -> int:
        return len(self._sampler) // self._count


def _order(dataset: Any, shuffle: bool, options: Options) -> Any:
    if not shuffle:
        return SequentialSampler(dataset)
    if options.placement.num_processes == 1:
        return RandomSampler(dataset)
    require(
        options.exists("random_seed"),
        "shuffling in several processes needs one seed for all of them",
        None,
        hint="call options.randomSeed(n) with the same n in every process",
    )
    return RandomSampler(dataset, generator=torch.Generator().manual_seed(options.random_seed))
