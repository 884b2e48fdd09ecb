"""``DataLoader``: combined batches for a wrapped model, divided over the instances of the job."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch.utils.data
from torch.utils.data import IterableDataset

from popdist_torch.data.partition import share
from popdist_torch.data.sampler import GroupedBatchSampler, PartitionSampler
from popdist_torch.errors import DataError
from popdist_torch.executor.batching import Batching
from popdist_torch.options import DataLoaderMode, Options

if TYPE_CHECKING:
    from collections.abc import Iterable, Sized

logger = logging.getLogger("popdist.torch")


class DataLoader(torch.utils.data.DataLoader[Any]):
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
        **kwargs: Any,
    ) -> None:
        _require(isinstance(options, Options), "options must be a poptorch.Options", options)
        _require(
            mode == DataLoaderMode.Sync,
            "the loader reads synchronously",
            mode,
            hint="pass mode=DataLoaderMode.Sync; num_workers reads ahead in other processes",
        )
        options._freeze()  # noqa: SLF001 - what freezing is for
        self._options = options
        here = options.placement
        batching = Batching.of(options)
        divide = auto_distributed_partitioning and here.num_processes > 1
        iterable = isinstance(dataset, IterableDataset)
        self._combined = None if batch_size is None else batch_size * batching.parts
        own: dict[str, Any] = {}
        if batch_sampler is not None:
            _require(
                batch_size in (1, None) and not shuffle and not divide,
                "a batch_sampler excludes batch_size, shuffle and automatic partitioning",
                batch_sampler,
                hint="pass auto_distributed_partitioning=False and sample this process's part",
            )
            self._combined = None
            own["batch_sampler"] = GroupedBatchSampler(
                batch_sampler, batching.parts, drop_last=drop_last
            )
        elif divide:
            _require(
                not iterable,
                "an IterableDataset cannot be divided over processes",
                dataset,
                hint="pass auto_distributed_partitioning=False and let the data set read its part",
            )
            _require(
                batch_size is not None,
                "data is divided in batches, so batch_size cannot be None here",
                batch_size,
            )
            own |= self._divided(dataset, batch_size or 1, bool(shuffle), drop_last, kwargs)
        else:
            own |= {"shuffle": None if iterable else shuffle, "batch_size": self._combined}
        if batch_sampler is None and self._combined is not None:
            own |= {"batch_size": self._combined, "drop_last": drop_last}
        if iterable and num_workers > 1 and kwargs.get("worker_init_fn") is None:
            logger.warning(
                "an IterableDataset with %d workers and no worker_init_fn yields every sample "
                "%d times",
                num_workers,
                num_workers,
            )
        keep = num_workers > 0 if persistent_workers is None else persistent_workers
        super().__init__(dataset, num_workers=num_workers, persistent_workers=keep, **own, **kwargs)

    @property
    def combinedBatchSize(self) -> int | None:
        """Samples of one batch; None where batching is off or a batch_sampler decides."""
        return self._combined

    @property
    def options(self) -> Options:
        """The options that the loader was built with."""
        return self._options

    def _divided(
        self,
        dataset: Sized,
        micro_batch: int,
        shuffle: bool,
        drop_last: bool,
        kwargs: dict[str, Any],
    ) -> dict[str, Any]:
        options = self._options
        _require(
            kwargs.get("sampler") is None,
            "a sampler excludes automatic partitioning",
            kwargs.get("sampler"),
            hint="pass auto_distributed_partitioning=False and sample this process's part",
        )
        _require(
            not shuffle or options.exists("random_seed"),
            "shuffling in several processes needs one seed for all of them",
            None,
            hint="call options.randomSeed(n) with the same n in every process",
        )
        length = len(dataset)
        per_replica = micro_batch * options.device_iterations * Batching.of(options).accumulation
        part = share(length, per_replica, options.placement, drop_last=drop_last)
        options._data_facts.append(  # noqa: SLF001 - checked on the first step of the model
            f"{length} samples, {per_replica} a replica and call, shuffle={shuffle}, "
            f"drop_last={drop_last}"
        )
        seed = options.random_seed if shuffle else None
        return {"sampler": PartitionSampler(length, part, seed=seed)}


def _require(holds: bool, what: str, value: object, *, hint: str | None = None) -> None:
    if not holds:
        raise DataError("PD302", what, value=value, hint=hint)
