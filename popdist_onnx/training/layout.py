"""How the samples of an epoch are divided into updates, micro-batches and replicas."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from popdist_onnx.errors import popart_exception

if TYPE_CHECKING:
    from collections.abc import Iterator

    from popdist_onnx.training.local_replicas import LocalReplicas

Array = np.ndarray[Any, np.dtype[Any]]


_MOST = 4
"""How many times as large as others the micro-batches of a smaller update may be."""


class Layout:
    """How samples are divided into updates.

    Args:
        batch: Samples of a micro-batch.
        accumulation: Micro-batches per update and replica.
        job: Which replicas are this instance's.
        samples: Different samples of an update, each of which several replicas compute where their
            number does not divide by that of replicas; None where each belongs to one replica.
    """

    def __init__(
        self, batch: int, accumulation: int, job: LocalReplicas, samples: int | None = None
    ) -> None:
        self.batch, self.accumulation, self.job = batch, accumulation, job
        self.shape = (accumulation, job.total_replicas, batch)
        self.places = accumulation * job.total_replicas * batch
        self.size = self.places if samples is None else samples
        self.own = accumulation * job.local_replicas * batch
        self.parts = accumulation * job.total_replicas

    def rest(self, samples: int) -> Layout:
        """The layout of a smaller update, in which each sample has the same weight.

        Where replicas cannot have equal parts, each sample is computed by as many replicas as make
        the parts equal. Micro-batches are as near to the usual size as division allows.
        """
        each = samples // math.gcd(samples, self.job.total_replicas)
        fitting = [one for one in _divisors(each) if one <= _MOST * self.batch]
        batch = min(fitting, key=lambda one: abs(math.log(one / self.batch)))
        return Layout(batch, each // batch, self.job, samples)

    def divided(self, samples: Array) -> Array:
        """This process's part of an update's samples: ``[accumulation, replicas, batch, ...]``."""
        every = np.concatenate([samples] * (self.places // self.size))
        return every.reshape(*self.shape, *samples.shape[1:])[:, self.job.own]


@cache
def _divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


def updates_of(samples: int, size: int, *, drop_last: bool) -> int:
    """The number of updates in an epoch.

    Args:
        samples: How many samples there are.
        size: Samples of a whole update.
        drop_last: Whether a smaller one at the end is left out.

    Raises:
        popart_exception: There are no samples, or fewer than one update where the rest is left out.
    """
    if samples < (size if drop_last else 1):
        raise popart_exception(
            "PD579",
            "the data set is smaller than one global batch" if samples else "there are no samples",
            value=f"{samples} samples",
            accepted=f"at least {size} (batch size x accumulation x replicas of the job)",
            hint="smaller batch_size or accumulation, fewer replicas, or drop_last=False",
        )
    return samples // size if drop_last else -(-samples // size)


def indices(
    samples: int, layout: Layout, order: tuple[int, ...] | None, *, drop_last: bool
) -> Iterator[tuple[Layout, Array]]:
    """Indices ``[accumulation, local replicas, batch]`` of a process, update by update.

    All processes draw the same order from the seeds ``order``; None keeps the order of the samples.
    A global batch is divided by accumulation step, then replica. A smaller update at the end has a
    layout of its own.
    """
    order_of = (
        np.arange(samples) if order is None else np.random.default_rng(order).permutation(samples)
    )
    for update in range(updates_of(samples, layout.size, drop_last=drop_last)):
        chosen = order_of[update * layout.size : (update + 1) * layout.size]
        of = layout if len(chosen) == layout.size else layout.rest(len(chosen))
        yield of, of.divided(chosen)
