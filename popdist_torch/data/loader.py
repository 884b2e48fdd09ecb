"""``DataLoader``: combined batches for a wrapped model, divided over the instances of the job.

It counts the batches that the program has received: a position, which checkpoints save and restore.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.data
from torch.utils.data import IterableDataset

from popdist_torch.data.accessor import AsynchronousDataAccessor, note_start
from popdist_torch.data.loader_plan import Reading, Request, require
from popdist_torch.data.prefetch_worker import start_method
from popdist_torch.data.sampler import CollatedApart, MicroBatches, Position
from popdist_torch.errors import DataError
from popdist_torch.options import DataLoaderMode, DataPartition, Options
from popdist_torch.options.option_methods import member, whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from popdist_torch.data.partition import Layout


logger = logging.getLogger("popdist.torch")

_ABSENT: Any = object()
"""No data set: with it, a forgotten first argument is named rather than the last one."""


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
        mode: ``Sync`` reads when a batch is asked for (``num_workers`` read ahead); ``Async`` has
            another process keep batches ready; ``AsyncRebatched`` too, which joins them from
            smaller ones, so that several workers contribute to one batch.
        async_options: Arguments of `AsynchronousDataAccessor`, for the other two modes.
        rebatched_worker_size: Samples that workers load at once with ``AsyncRebatched``; by default
            a whole batch. It has no effect in the other modes.
        batch_sampler: A sampler of micro-batches in place of ``batch_size`` and ``shuffle``.
        partition: How to divide; an addition to PopTorch's arguments.
        **kwargs: As for ``torch.utils.data.DataLoader``.

    Raises:
        DataError: The arguments contradict each other, or the data cannot be divided.
    """

    _accessor: AsynchronousDataAccessor | None = None

    def __init__(
        self,
        options: Options,
        dataset: Any = _ABSENT,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        num_workers: int = 0,
        drop_last: bool = True,
        persistent_workers: bool | None = None,
        auto_distributed_partitioning: bool = True,
        mode: DataLoaderMode = DataLoaderMode.Sync,
        async_options: Mapping[str, Any] | None = None,
        rebatched_worker_size: int | None = None,
        batch_sampler: Iterable[list[int]] | None = None,
        *,
        partition: DataPartition = DataPartition.Contiguous,
        **kwargs: Any,
    ) -> None:
        require(
            isinstance(options, Options),
            "options must be a poptorch.Options",
            type(options).__name__,
            hint="a loader takes its options first: DataLoader(options, dataset, ...)",
        )
        require(
            dataset is not _ABSENT, "a loader needs data: DataLoader(options, dataset, ...)", None
        )
        mode = member("mode", mode, DataLoaderMode)
        partition = member("partition", partition, DataPartition)
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
            collates=kwargs.get("collate_fn") is not None,
            generator=kwargs.get("generator"),
            elsewhere=mode != DataLoaderMode.Sync,
        ).reading()
        if isinstance(dataset, IterableDataset) and num_workers > 1:
            _warn_of_copies(num_workers, kwargs.get("worker_init_fn"))
        keep = num_workers > 0 if persistent_workers is None else persistent_workers
        workers = {"num_workers": num_workers, "persistent_workers": keep}
        self._open(dataset, reading, **workers, **kwargs)
        if options.placement.num_processes > 1:
            facts = options._data_facts  # noqa: SLF001 - checked on the model's first step
            facts.append(reading.shared or f"{self._batches()} batches a process")
        if self._batches() == 0 and reading.batch_size is not None:
            logger.warning(
                "the loader has no batch: the data set is smaller than one combined batch of %d "
                "samples, and drop_last=True",
                reading.batch_size,
            )
        if mode != DataLoaderMode.Sync:
            pieces = _pieces(reading, mode, rebatched_worker_size)
            source = Source(dataset, pieces or reading, **workers, **kwargs)
            self._accessor = _accessor(source, reading, async_options, joined=pieces is not None)

    def _open(self, dataset: Any, reading: Reading, **kwargs: Any) -> None:
        """Opens torch's loader, which reads the data as `reading` says."""
        self._reading = self._as_placed = reading
        self._layout: Layout | None = None
        self._position = Position()
        # Whether the next iteration starts at `_position`, and not in the epoch after it.
        self._waiting = True
        self._default_start = kwargs.get("multiprocessing_context") is None
        # In another process, the loader's owner starts the next epoch.
        self._owned = False
        self._whole = dataset
        self._opening = False
        self._part = reading.part_of(dataset)
        # A function that pads knows one micro-batch.
        self._apart = reading.in_batches and kwargs.get("collate_fn") is not None
        if self._apart:
            kwargs["collate_fn"] = CollatedApart(kwargs["collate_fn"])
        super().__init__(dataset, **reading.loader_arguments(), **kwargs)

    @property
    def dataset(self) -> Any:
        """What this process reads of the data; the whole set where it is not divided.

        As many samples as it reads in an epoch, in this epoch's order.
        """
        if self._opening and self._apart:
            return MicroBatches(self._whole)
        return self._whole if self._opening or self._part is None else self._part

    @dataset.setter
    def dataset(self, dataset: Any) -> None:
        self._whole = dataset

    def state_dict(self) -> dict[str, Any]:
        """The program's position in the data: after the last batch that it received.

        Returns:
            Plain values. Batches that data workers have read ahead do not count.
        """
        position = self._position
        if self._waiting and position.random is None and self.generator is not None:
            position = Position(position.epoch, position.batch, self.generator.get_state())
        reading = self._reading
        return position.state_dict(data=reading.data, place=reading.place, layout=self._layout)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration resume at the saved position of another run's loader.

        If that loader had read its epoch's last batch, the next iteration is the next epoch.
        Samples that were read already are skipped by index; only an ``IterableDataset`` is read
        again up to the position. Torch's global generator does not change. Random transformations
        in data workers are not replayed: derive them from the sample's index where a resumed run
        must repeat them.

        Args:
            state: What `state_dict` returned; the loader must read the same data in the same way.
                With a ``layout``, which `Checkpoint` adds, each replica reads what it would have
                read in a job of that layout, in later epochs too.

        Raises:
            DataError: It is a position of another loader, or of another layout.
        """
        joined = self._accessor is not None and self._accessor.joins
        require(
            not joined or self._reading.sampler is not None or state.get("batch") in (0, None),
            "a loader that joins what an IterableDataset gives can only start over",
            state.get("batch"),
            hint="use DataLoaderMode.Async or Sync to go on within an epoch",
        )
        position = Position.from_state_dict(state, self._reading.data)
        self._follow(state["layout"], state["place"])
        self._position = position
        self._waiting = True
        if self._accessor is not None:
            self._accessor.start_from(self.state_dict())

    def _follow(self, layout: Layout | None, place: list[int]) -> None:
        """Reads as placed, or as the replicas of this process would in a job of another layout."""
        own = self._as_placed
        if layout is None:
            if place != own.place:
                raise DataError(
                    "PD396",
                    "the position belongs to another loader: one of other replicas",
                    value=_placed(place),
                    accepted=_placed(own.place),
                    hint="popdist_torch.Checkpoint moves positions to another layout of instances",
                )
            self._reading = own
        else:
            if own.relaid is None or sum(local for _, local in layout) != own.place[2]:
                raise DataError(
                    "PD324",
                    "a loader cannot resume with another layout of instances where the program "
                    "divides the data, or with drop_last=False",
                    value=f"processes with {[local for _, local in layout]} replicas then",
                    accepted="the layout in which it was saved",
                    hint="let poptorch.DataLoader divide the data, or leave the loader out of the "
                    "checkpoint and begin an epoch",
                )
            self._reading = replace(own, sampler=own.relaid(layout))
        self._layout = layout
        if isinstance(self.batch_sampler, torch.utils.data.BatchSampler):
            self.batch_sampler.sampler = self._reading.sampler or self.batch_sampler.sampler
        self._part = self._reading.part_of(self._whole)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if not self._waiting:
            self._position = self._position.next_epoch()
            if self._accessor is not None:
                self._accessor.start_from(self.state_dict())
        self._waiting = False
        position = self._position
        batches = self._read(position) if self._accessor is None else iter(self._accessor)
        return self._counted(batches, position)

    def _read(self, position: Position) -> Iterator[Any]:
        if self.num_workers and self._default_start and self._iterator is None:
            self.multiprocessing_context = start_method()
        sampler = self._reading.sampler
        with self._as_when_the_epoch_began(position):
            skip = position.batch
            if sampler is not None:
                sampler.start(position.epoch, skip * self._reading.items_per_batch)
                skip = 0
            if self.num_workers and self._iterator is None:
                note_start(self.num_workers)
            self._opening = True  # torch's workers read the whole set, by index
            try:
                batches = super().__iter__()
            finally:
                self._opening = False
            if sampler is not None:
                sampler.draw()
            for _ in islice(batches, skip):
                pass
        return batches

    def _counted(self, batches: Iterator[Any], position: Position) -> Iterator[Any]:
        resumed = position.batch
        for batch in batches:
            position.batch += 1
            yield batch
        if self._position is not position:  # another iteration has begun meanwhile
            return
        self._position = position.next_epoch()
        self._waiting = True
        if resumed and position.batch == resumed and not self._owned:
            yield from iter(self)

    @contextmanager
    def _as_when_the_epoch_began(self, position: Position) -> Iterator[None]:
        """Repeats what an epoch draws as it begins, past the generator that a resumed run has."""
        now = self._random_state()
        if position.random is None:
            position.random = now
            yield
            return
        self._set_random_state(position.random)
        yield
        if self.generator is None:
            self._set_random_state(now)

    def _random_state(self) -> torch.Tensor:
        return torch.get_rng_state() if self.generator is None else self.generator.get_state()

    def _set_random_state(self, state: torch.Tensor) -> None:
        if self.generator is None:
            torch.set_rng_state(state)
        else:
            self.generator.set_state(state)

    def terminate(self) -> None:
        """Ends the process that prepares batches, where there is one."""
        if self._accessor is not None:
            self._accessor.terminate()

    def _batches(self) -> int | str:
        try:
            return len(self)
        except TypeError:
            return "an unknown number of"

    @property
    def _combined_batch_size(self) -> int | None:
        """The name by which published programs read `combinedBatchSize`."""
        return self.combinedBatchSize

    @property
    def combinedBatchSize(self) -> int | None:
        """Samples of one batch; None where batching is off or a batch_sampler decides."""
        return self._reading.batch_size

    @property
    def options(self) -> Options:
        """The options that the loader was built with."""
        return self._options


class Source(DataLoader):
    """What another process reads for a loader, without the options of a model."""

    def __init__(self, dataset: Any, reading: Reading, **kwargs: Any) -> None:
        self._open(dataset, reading, **kwargs)
        self._owned = True


def _placed(place: list[int]) -> str:
    first, local, total = place
    return f"replicas {first} to {first + local - 1} of {total}"


def _pieces(reading: Reading, mode: DataLoaderMode, rows: int | None) -> Reading | None:
    """What the workers of a rebatching loader read; None for the other modes."""
    if mode != DataLoaderMode.AsyncRebatched:
        return None
    if reading.in_batches:
        return None  # a batch_sampler has divided the rows already
    combined = reading.batch_size
    require(combined is not None, "AsyncRebatched needs a batch_size", combined, hint="use Async")
    size = whole_number("rebatched_worker_size", rows or combined, least=1)
    require(
        size <= (combined or 0),
        f"rebatched_worker_size cannot be larger than the combined batch of {combined}",
        size,
    )
    return reading.in_pieces(size)


def _accessor(
    source: DataLoader, reading: Reading, given: Mapping[str, Any] | None, *, joined: bool
) -> AsynchronousDataAccessor:
    settings = dict(given or {})
    for name in ("dataset", "rebatched_size", "keep_rest"):
        require(name not in settings, f"async_options cannot hold {name}", settings.get(name))
    require(
        source.generator is None,
        "a generator cannot be shared with the process that reads",
        source.generator,
        hint="seed the order with options.randomSeed(n)",
    )
    return AsynchronousDataAccessor(
        source,
        **settings,
        rebatched_size=reading.batch_size if joined else None,
        keep_rest=not reading.drop_last,
    )


def _warn_of_copies(workers: int, worker_init_fn: object) -> None:
    if worker_init_fn is None:
        logger.warning(
            "an IterableDataset with %d workers and no worker_init_fn yields every sample %d times",
            workers,
            workers,
        )
