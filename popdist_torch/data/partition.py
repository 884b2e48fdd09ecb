"""Which samples of a data set each process reads: arithmetic only.

Every replica of the job gets the same number of samples, so the rules also hold where processes
differ in their number of replicas. By PopTorch's rule (`share`) a process reads one contiguous
range of the (possibly shuffled) order; the published lengths follow. The original's defects do not:
a set smaller than one global batch is an error instead of a division by zero, and leftovers are
counted exactly. By the other rule (`weave`) the samples of each weight update are the same however
replicas are laid out over processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from popdist_torch.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_torch.options.placement import Placement


class Part(Protocol):
    """What one process reads."""

    def __len__(self) -> int: ...

    def positions(self, epoch: int) -> Sequence[int]:
        """The positions of the order to read in an epoch, as many in each."""


@dataclass(frozen=True)
class Share:
    """One process's range of the order, before the leftovers move it.

    Attributes:
        start: Its first position.
        stop: One past its last position.
        leftover: Samples at the end of the order that no process reads. In every other epoch all
            ranges lie this much further, so that over two epochs every sample can be read.
    """

    start: int
    stop: int
    leftover: int

    def __len__(self) -> int:
        return self.stop - self.start

    def positions(self, epoch: int) -> range:
        """The positions to read in an epoch (from 0), as many in every epoch."""
        shift = self.leftover if epoch % 2 else 0
        return range(self.start + shift, self.stop + shift)


@dataclass(frozen=True)
class Woven:
    """One process's rows of every micro-batch of all replicas of the job.

    Attributes:
        blocks: Micro-batches of one replica in an epoch.
        micro_batch: Samples of one of them.
        here: The replicas of this process.
        leftover: As for `Share`.
    """

    blocks: int
    micro_batch: int
    here: Placement
    leftover: int

    def __len__(self) -> int:
        return self.blocks * self.micro_batch * self.here.local_replicas

    def positions(self, epoch: int) -> Sequence[int]:
        """The positions to read in an epoch (from 0), as many in every epoch.

        They are sorted by block; each block has the rows of this process's replicas.
        """
        starts = np.arange(self.blocks) * (self.micro_batch * self.here.total_replicas)
        first = self.here.first_replica * self.micro_batch
        rows = first + np.arange(self.here.local_replicas * self.micro_batch)
        shift = self.leftover if epoch % 2 else 0
        positions: list[int] = (starts[:, None] + rows + shift).ravel().tolist()
        return positions


@dataclass(frozen=True)
class Replayed:
    """One process's rows of the batches that a job in another layout would read by `share`.

    Attributes:
        rows: The rows of one call, as positions of the first call: ``[rows of this process]``.
        strides: How far each of them moves from one call to the next.
        calls: Calls in an epoch.
        leftover: As for `Share`.
    """

    rows: Sequence[int]
    strides: Sequence[int]
    calls: int
    leftover: int

    def __len__(self) -> int:
        return self.calls * len(self.rows)

    def positions(self, epoch: int) -> Sequence[int]:
        """The positions to read in an epoch (from 0), as many in every epoch."""
        calls = np.arange(self.calls)[:, None]
        shift = self.leftover if epoch % 2 else 0
        positions: list[int] = (np.array(self.rows) + calls * self.strides + shift).ravel().tolist()
        return positions


Layout = list[list[int]]
"""The first replica and the number of replicas of each process of a job."""


def replay(length: int, micro_batch: int, steps: int, here: Placement, layout: Layout) -> Part:
    """What `share` gives a job in another layout, divided so that each replica reads the same.

    ``steps`` are the micro-batches of one replica in one call. Only whole global batches are read.

    Raises:
        DataError: Not one global batch fits.
    """
    global_batch = micro_batch * steps * here.total_replicas
    batches = _batches(length, micro_batch * steps, global_batch, here)
    rows: list[int] = []
    strides: list[int] = []
    for step in range(steps):
        for replica in range(here.first_replica, here.first_replica + here.local_replicas):
            first, local = next(p for p in layout if p[0] <= replica < sum(p))
            start = batches * micro_batch * steps * first
            row = start + (step * local + replica - first) * micro_batch
            rows += range(row, row + micro_batch)
            strides += [micro_batch * steps * local] * micro_batch
    # A process that is alone reads whole batches from the start of the order in every epoch.
    leftover = length - batches * global_batch if len(layout) > 1 else 0
    return Replayed(rows, strides, batches, leftover)


def share(length: int, samples_per_replica: int, here: Placement, *, drop_last: bool) -> Share:
    """Divides a data set over the processes of a job, by PopTorch's rule.

    ``samples_per_replica`` are the samples of one replica in one call (micro-batch x device
    iterations x accumulation). With ``drop_last``, only whole global batches are read.

    Raises:
        DataError: Not one global batch fits, or processes would read unequal numbers of batches.
    """
    global_batch = samples_per_replica * here.total_replicas
    if drop_last:
        return _whole_batches(length, samples_per_replica, global_batch, here)
    return _everything(length, samples_per_replica, here)


def weave(length: int, micro_batch: int, steps: int, here: Placement) -> Woven:
    """Divides every micro-batch of the job over its processes; only whole global batches are read.

    Raises:
        DataError: Not one global batch fits.
    """
    global_batch = micro_batch * steps * here.total_replicas
    batches = _batches(length, micro_batch * steps, global_batch, here)
    return Woven(batches * steps, micro_batch, here, length - batches * global_batch)


def _whole_batches(
    length: int, samples_per_replica: int, global_batch: int, here: Placement
) -> Share:
    batches = _batches(length, samples_per_replica, global_batch, here)
    each = batches * samples_per_replica
    start = each * here.first_replica
    return Share(start, start + each * here.local_replicas, length - batches * global_batch)


def _batches(length: int, samples_per_replica: int, global_batch: int, here: Placement) -> int:
    batches = length // global_batch
    if batches == 0:
        raise DataError(
            "PD302",
            "the data set is smaller than one global batch",
            value=f"{length} samples; a global batch has {samples_per_replica} a replica x "
            f"{here.total_replicas} replicas = {global_batch}",
            hint="lower the batch size, gradientAccumulation or deviceIterations, or use fewer "
            "replicas",
        )
    return batches


def _everything(length: int, samples_per_replica: int, here: Placement) -> Share:
    if here.total_replicas != here.local_replicas * here.num_processes:
        raise DataError(
            "PD302",
            "drop_last=False needs the same number of replicas in every process",
            value=f"{here.local_replicas} of {here.total_replicas} replicas are here",
            hint="pass drop_last=True",
        )
    each, longer = divmod(length, here.num_processes)
    step = samples_per_replica * here.local_replicas
    if longer and each % step == 0:
        raise DataError(
            "PD302",
            "with drop_last=False some processes would read one batch more than others, and wait "
            "for ever in its gradient exchange",
            value=f"{length} samples over {here.num_processes} processes in batches of {step}",
            hint="pass drop_last=True, or pad the data set to a multiple of the processes",
        )
    start = each * here.process_id + min(here.process_id, longer)
    return Share(start, start + each + (here.process_id < longer), 0)
