"""``DataLoader``: combined batches for a wrapped model, divided over the instances of the job."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from popdist_torch.data.positioned import PositionedLoader
from popdist_torch.data.reading import Request, require
from popdist_torch.options import DataLoaderMode, DataPartition, Options

if TYPE_CHECKING:
    from collections.abc import Iterable

logger = logging.getLogger("popdist.torch")


class DataLoader(PositionedLoader):
    """A torch loader whose batches feed one call of a wrapped model.

    One batch holds micro-batch x device iterations x local replicas x accumulation samples. With
    several processes each reads its own part of the data (see `popdist_torch.data.partition`).

    Args:
        options: Options of the model that the loader feeds; frozen from here on.
        dataset: The data; the same in every process.
        batch_size: Samples of one micro-batch; None turns batching off.
        shuffle: Whether every epoch has a fresh order; with several processes this needs
            ``options.randomSeed``, from which all draw the same order.
        num_workers: Data worker processes.
        drop_last: Whether an incomplete last batch is left out.
        persistent_workers: Whether workers live on between epochs; by default they do.
        auto_distributed_partitioning: Whether to divide the data over the processes.
        mode: How to read; only ``DataLoaderMode.Sync``.
        batch_sampler: A sampler of micro-batches in place of ``batch_size`` and ``shuffle``.
        partition: How to divide; an addition to PopTorch's arguments.
        **kwargs: As for ``torch.utils.data.DataLoader``.

    Raises:
        DataError: The arguments contradict each other, or the data cannot be divided.
    """

    def __init__(
        self,
        options: Options,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        num_workers: int = 0,
        drop_last: bool = True,
        persistent_workers: bool | None = None,
        auto_distributed_partitioning: bool = True,
        mode: DataLoaderMode = DataLoaderMode.Sync,
        batch_sampler: Iterable[list[int]] | None = None,
        *,
        partition: DataPartition = DataPartition.Contiguous,
        **kwargs: Any,
    ) -> None:
        require(isinstance(options, Options), "options must be a poptorch.Options", options)
        require(
            mode == DataLoaderMode.Sync,
            "the loader reads synchronously",
            mode,
            hint="pass mode=DataLoaderMode.Sync; num_workers reads ahead in other processes",
        )
        options._freeze()  # noqa: SLF001 - what freezing is for
        self._options = options
        reading = Request(
            options=options,
            dataset=dataset,
            batch_size=batch_size,
            shuffle=bool(shuffle),
            drop_last=drop_last,
            automatic=auto_distributed_partitioning,
            partition=partition,
            sampler=kwargs.pop("sampler", None),
            batch_sampler=batch_sampler,
            generator=kwargs.get("generator"),
            elsewhere=False,
        ).reading()
        if reading.shared is not None:
            options._data_facts.append(reading.shared)  # noqa: SLF001 - checked on the first step
        if isinstance(dataset, IterableDataset) and num_workers > 1:
            _warn_of_copies(num_workers, kwargs.get("worker_init_fn"))
        keep = num_workers > 0 if persistent_workers is None else persistent_workers
        super().__init__(
            dataset, reading, num_workers=num_workers, persistent_workers=keep, **kwargs
        )

    @property
    def combinedBatchSize(self) -> int | None:
        """Samples of one batch; None where batching is off or a batch_sampler decides."""
        return self._reading.batch_size

    @property
    def options(self) -> Options:
        """The options that the loader was built with."""
        return self._options


def _warn_of_copies(workers: int, worker_init_fn: object) -> None:
    if worker_init_fn is None:
        logger.warning(
            "an IterableDataset with %d workers and no worker_init_fn yields every sample %d times",
            workers,
            workers,
        )
