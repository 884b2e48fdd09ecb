"""``DataLoader`` and ``FixedSizeDataLoader``: combined batches of graphs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Dataset, RandomSampler

from popdist_torch.data.loader import DataLoader as Loader
from popdist_torch.data.loader_plan import require
from popdist_torch.geometric import pyg_dataloader
from popdist_torch.geometric.collate import CombinedBatchingCollater
from popdist_torch.geometric.pyg_dataloader import FixedSizeStrategy, OverSizeStrategy
from popdist_torch.options import Options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from popdist_torch.geometric.fixed_size_options import FixedSizeOptions

logger = logging.getLogger("popdist.torch")

__all__ = ["DataLoader", "FixedSizeDataLoader", "FixedSizeStrategy", "OverSizeStrategy"]


class DataLoader(pyg_dataloader.DataLoader, Loader):
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

    _combined = CombinedBatchingCollater

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
        kwargs["options"] = Options() if options is None else options
        super().__init__(dataset, batch_size, shuffle, follow_batch, exclude_keys, **kwargs)


class FixedSizeDataLoader(pyg_dataloader.FixedSizeDataLoader, Loader):
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

    _combined = CombinedBatchingCollater

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
        self._options = kwargs["options"] = Options() if options is None else options
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            fixed_size_options,
            fixed_size_strategy,
            over_size_strategy,
            add_pad_masks,
            follow_batch,
            exclude_keys,
            **kwargs,
        )

    def _order(self, dataset: Any, shuffle: bool) -> Any:
        if not shuffle or self._options.placement.num_processes == 1:
            return super()._order(dataset, shuffle)
        require(
            self._options.exists("random_seed"),
            "shuffling in several processes needs one seed for all of them",
            None,
            hint="call options.randomSeed(n) with the same n in every process",
        )
        generator = torch.Generator().manual_seed(self._options.random_seed)
        return RandomSampler(dataset, generator=generator)

    def _dealt(self, dataset: Any, sampler: Any) -> dict[str, Any]:
        here = self._options.placement
        dealt = Dealt(sampler, here.process_id, here.num_processes)
        return {**self._packed(dataset, dealt), "auto_distributed_partitioning": False}

    def _packed(self, dataset: Any, sampler: Any) -> dict[str, Any]:
        return {"dataset": Packs(dataset), "batch_sampler": OfPacks(sampler)}


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
