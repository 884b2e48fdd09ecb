"""The plan of a loader: which samples it reads and in which order, from options and arguments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset, RandomSampler, SequentialSampler

from popdist_torch.data.partition import Layout, Share, replay, share, weave
from popdist_torch.data.sampler import (
    DrawnSampler,
    EpochSampler,
    GivenSampler,
    GroupedBatchSampler,
    InstancePart,
    PartitionSampler,
    selection,
)
from popdist_torch.errors import DataError
from popdist_torch.executor.batching import Batching
from popdist_torch.options.enums import DataPartition
from popdist_torch.options.option_methods import whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from popdist_torch.options import Options
    from popdist_torch.options.placement import Placement


@dataclass(frozen=True)
class Reading:
    """One process's way through its data.

    Attributes:
        sampler: Where its items come from; None for a data set that decides itself.
        batch_size: Samples of one batch; None where batching is off or a batch sampler decides.
        drop_last: Whether an incomplete last batch is left out.
        in_batches: Whether ``sampler`` gives whole batches.
        items_per_batch: Items of the sampler that the program gets as one batch.
        data: Description that a resumed loader must match.
        place: First replica, local replicas and all replicas, in groups that read the same.
        relaid: Makes the sampler of a job in another layout, as far as it concerns the replicas
            of this process; None where the order depends on more than options and arguments.
        shared: Description that all instances must match; None where nothing can be said.
    """

    sampler: EpochSampler | None
    batch_size: int | None
    drop_last: bool
    in_batches: bool
    items_per_batch: int
    data: str
    place: list[int]
    relaid: Callable[[Layout], EpochSampler] | None
    shared: str | None

    def in_pieces(self, rows: int) -> Reading:
        """The same plan in steps of ``rows`` samples; its position still counts whole batches."""
        return replace(self, batch_size=rows, drop_last=False)

    def part_of(self, dataset: Any) -> InstancePart | None:
        """The part of a data set that this process reads; None where the set is not divided."""
        if self.shared is None or not isinstance(self.sampler, PartitionSampler):
            return None
        return InstancePart(dataset, self.sampler)

    def loader_arguments(self) -> dict[str, Any]:
        """Keyword arguments of torch's loader."""
        if self.in_batches:
            return {"batch_sampler": self.sampler}
        batching: dict[str, Any] = {"batch_size": self.batch_size}
        if self.batch_size is not None:
            batching["drop_last"] = self.drop_last
        return batching if self.sampler is None else {**batching, "sampler": self.sampler}


@dataclass(frozen=True, kw_only=True)
class Request:
    """A program's arguments for a loader; see `popdist_torch.DataLoader` for the fields."""

    options: Options
    dataset: Any
    batch_size: int | None
    shuffle: bool
    drop_last: bool
    automatic: bool
    partition: DataPartition
    sampler: Any
    batch_sampler: Iterable[list[int]] | None
    collates: bool
    """Whether the program collates samples itself."""
    generator: torch.Generator | None
    elsewhere: bool
    """Whether another process reads, which does not share this one's generators."""

    def reading(self) -> Reading:
        """Makes the plan.

        Raises:
            DataError: The arguments contradict each other, or the data cannot be divided.
            OptionError: The batch size is not a positive number.
        """
        if self.batch_size is not None:
            whole_number("batch_size", self.batch_size, least=1)
        here, woven = self.options.placement, self.partition == DataPartition.Interleaved
        divide = self.automatic and (here.num_processes > 1 or woven)
        if self.batch_sampler is not None:
            require(
                self.batch_size in (1, None) and not self.shuffle and not divide,
                "a batch_sampler excludes batch_size, shuffle and automatic partitioning",
                self.batch_sampler,
                hint="pass auto_distributed_partitioning=False and sample this process's part",
            )
            grouped = GroupedBatchSampler(
                self.batch_sampler,
                Batching.of(self.options).parts,
                drop_last=self.drop_last,
                apart=self.collates,
            )
            return self._read(grouped, in_batches=True)
        meant = _flag(self.sampler, self.dataset) if divide else None
        if meant is not None:
            return replace(self, sampler=None, shuffle=meant).reading()
        require(
            self.sampler is None or not (self.shuffle or divide),
            "a sampler excludes shuffle and automatic partitioning",
            self.sampler,
            hint="pass auto_distributed_partitioning=False and sample this process's part",
        )
        if divide:
            return self._read(self._divided(woven=woven), shared=self._facts())
        if isinstance(self.dataset, IterableDataset):
            require(not self.shuffle, "an IterableDataset cannot be shuffled", self.dataset)
            return self._read(None)
        return self._read(self._whole())

    def _read(
        self, sampler: EpochSampler | None, *, in_batches: bool = False, shared: str | None = None
    ) -> Reading:
        combined, here = None, self.options.placement.in_groups(self.options.input_group_size)
        if self.batch_size is not None and not in_batches:
            combined = self.batch_size * Batching.of(self.options).parts
        return Reading(
            sampler,
            combined,
            self.drop_last,
            in_batches,
            combined or 1,
            self._identity(in_batches=in_batches),
            [here.first_replica, here.local_replicas, here.total_replicas],
            self._relaid(in_batches=in_batches),
            shared,
        )

    def _relaid(self, *, in_batches: bool) -> Callable[[Layout], EpochSampler] | None:
        """The maker of samplers for other layouts; None where the program divides its data."""
        if in_batches or self.sampler is not None or self.batch_size is None:
            return None
        if isinstance(self.dataset, IterableDataset) or not (self.automatic and self.drop_last):
            return None
        return partial(
            _relaid,
            length=len(self.dataset),
            micro_batch=self.batch_size,
            steps=self._steps(),
            here=self.options.placement.in_groups(self.options.input_group_size),
            woven=self.partition == DataPartition.Interleaved,
            shuffle=self.shuffle,
            seed=self.options.random_seed if self.options.exists("random_seed") else None,
        )

    def _whole(self) -> EpochSampler:
        if self.sampler is not None:
            return GivenSampler(self.sampler)
        length = len(self.dataset)
        if not self.shuffle:
            return PartitionSampler(length, Share(0, length, 0), seed=None)
        if self.elsewhere:
            return PartitionSampler(length, Share(0, length, 0), seed=self._seed())
        return DrawnSampler(length, self.generator)

    def _divided(self, *, woven: bool) -> EpochSampler:
        require(
            not isinstance(self.dataset, IterableDataset),
            "an IterableDataset cannot be divided over processes",
            self.dataset,
            hint="pass auto_distributed_partitioning=False and let the data set read its part",
        )
        require(
            self.batch_size is not None,
            "data is divided in batches, so batch_size cannot be None here",
            self.batch_size,
            hint="pass a batch_size, or auto_distributed_partitioning=False and divide it yourself",
        )
        require(
            not self.shuffle or self.options.exists("random_seed"),
            "shuffling in several processes needs one seed for all of them",
            None,
            hint="call options.randomSeed(n) with the same n in every process",
        )
        length = len(self.dataset)
        here = self.options.placement.in_groups(self.options.input_group_size)
        micro_batch, steps = self.batch_size or 1, self._steps()
        seed = self.options.random_seed if self.shuffle else None
        if woven:
            require(
                self.drop_last,
                "interleaved partitioning reads whole global batches only",
                f"drop_last={self.drop_last}",
                hint="pass drop_last=True",
            )
            return PartitionSampler(length, weave(length, micro_batch, steps, here), seed=seed)
        part = share(length, micro_batch * steps, here, drop_last=self.drop_last)
        return PartitionSampler(length, part, seed=seed)

    def _steps(self) -> int:
        """Micro-batches of one replica in one call."""
        batching = Batching.of(self.options)
        return batching.iterations * batching.accumulation

    def _seed(self) -> int:
        if self.options.exists("random_seed"):
            return int(self.options.random_seed)
        return int(torch.empty((), dtype=torch.int64).random_().item())

    def _facts(self) -> str:
        per_replica = (self.batch_size or 1) * self._steps()
        chosen = selection(self.dataset)
        return (
            f"{len(self.dataset)} samples{f' (selection {chosen})' if chosen else ''}, "
            f"{per_replica} a replica and call, shuffle={self.shuffle}, drop_last={self.drop_last}"
        )

    def _identity(self, *, in_batches: bool) -> str:
        length = len(self.dataset) if hasattr(self.dataset, "__len__") else "an unknown number of"
        seed = self.options.random_seed if self.options.exists("random_seed") else None
        size = None if in_batches or self.batch_size is None else self.batch_size * self._steps()
        return (
            f"{length} samples, {size} a replica and call, {self.partition.name}, "
            f"shuffle={self.shuffle}, drop_last={self.drop_last}, seed {seed}"
        )


def _flag(sampler: object, dataset: Any) -> bool | None:
    """The value of ``shuffle`` for which torch makes such a sampler; None for other samplers.

    Libraries pass torch's own sampler in place of the flag: Lightning where it copies a loader, and
    optimum-graphcore, whose sampler is of the data set before columns are removed. Such a sampler
    knows the length of its data set only.
    """
    if not isinstance(sampler, SequentialSampler | RandomSampler) or not hasattr(
        dataset, "__len__"
    ):
        return None
    if not len(sampler) == len(sampler.data_source) == len(dataset):
        return None
    if isinstance(sampler, SequentialSampler):
        return False
    return None if sampler.replacement else True


def _relaid(
    layout: Layout,
    *,
    length: int,
    micro_batch: int,
    steps: int,
    here: Placement,
    woven: bool,
    shuffle: bool,
    seed: int | None,
) -> EpochSampler:
    """Reads what this process's replicas would read in a job of another layout."""
    require(
        not shuffle or woven or len(layout) > 1,
        "the order of one process that shuffles alone comes from its own random stream, which "
        "several processes do not share",
        f"{len(layout)} process then, {here.num_processes} now",
        hint="pass partition=DataPartition.Interleaved, whose order is the same in every layout",
        code="PD324",
    )
    part = (
        weave(length, micro_batch, steps, here)
        if woven
        else replay(length, micro_batch, steps, here, layout)
    )
    return PartitionSampler(length, part, seed=seed if shuffle else None)


def require(
    holds: bool, what: str, value: object, *, hint: str | None = None, code: str = "PD302"
) -> None:
    """Checks a rule of the loader's arguments; ``value`` and ``hint`` go into the message.

    Raises:
        DataError: The rule does not hold.
    """
    if not holds:
        raise DataError(code, what, value=value, hint=hint)
