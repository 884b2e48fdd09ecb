"""Which samples a process takes in an epoch. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from popdist_onnx.errors import popart_exception

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from popdist_onnx.training.job import Job

Array = np.ndarray[Any, np.dtype[Any]]


def sample_count(arrays: Mapping[str, Array]) -> int:
    """The number of samples of a data set.

    Args:
        arrays: Arrays by input, samples first.

    Returns:
        The number.

    Raises:
        popart_exception: There are no arrays, or they differ in it.
    """
    counts = {name: len(array) for name, array in arrays.items() if array.ndim}
    if len(set(counts.values())) != 1 or len(counts) != len(arrays):
        raise popart_exception(
            "PD579",
            "the arrays of a data set need the same number of samples, first dimension",
            value={name: array.shape for name, array in arrays.items()},
        )
    return next(iter(counts.values()))


def updates_of(samples: int, global_batch: int) -> int:
    """How many weight updates an epoch has.

    Args:
        samples: Samples of the data set.
        global_batch: Samples per update in the whole job.

    Returns:
        The number of whole global batches; what is left over waits for another order.

    Raises:
        popart_exception: There is not even one.
    """
    if samples < global_batch:
        raise popart_exception(
            "PD579",
            "the data set is smaller than one global batch",
            value=f"{samples} samples",
            accepted=f"at least {global_batch} (batch size x accumulation x replicas of the job)",
            hint="smaller batch_size or accumulation, or fewer replicas",
        )
    return samples // global_batch


def indices(
    samples: int, *, batch: int, accumulation: int, job: Job, order: tuple[int, ...] | None
) -> Iterator[Array]:
    """The samples of a process, update by update.

    All processes draw the same order. A global batch is divided by accumulation step, then replica.

    Args:
        samples: Samples of the data set.
        batch: Samples of a micro-batch.
        accumulation: Micro-batches per update and replica.
        job: Which replicas are this process's.
        order: Seeds of the order; None takes the samples as they come.

    Yields:
        Indices [accumulation, local replicas, batch].
    """
    shape = (accumulation, job.total_replicas, batch)
    size = int(np.prod(shape))
    order_of = (
        np.arange(samples) if order is None else np.random.default_rng(order).permutation(samples)
    )
    mine = slice(job.first_replica, job.first_replica + job.local_replicas)
    for update in range(updates_of(samples, size)):
        yield order_of[update * size : (update + 1) * size].reshape(shape)[:, mine]
