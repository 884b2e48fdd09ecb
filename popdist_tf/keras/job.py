"""The job of a Keras program (several ranks, or one), and its collectives."""

from __future__ import annotations

from typing import Any

from popdist import backend
from popdist_tf.collectives import instances
from popdist_tf.collectives.instances import job_collectives
from popdist_tf.collectives.names import pairing_name
from popdist_tf.together.outside_scope import warn_of_unwrapped


def init() -> None:
    """Starts Horovod among all processes of the job; a program that runs alone needs none."""
    if backend.launch().by:
        instances.init()
        warn_of_unwrapped(size())


def size() -> int:
    """How many ranks the job has.

    Returns:
        1 in a program that runs alone.
    """
    return job_collectives().size


def rank() -> int:
    """The rank of this process.

    Returns:
        0 in a program that runs alone.
    """
    return job_collectives().rank


def local_rank() -> int:
    """The rank of this process among those on its host.

    Returns:
        0 in a program that runs alone.
    """
    return int(instances.local_rank()) if size() > 1 else 0


def local_size() -> int:
    """How many ranks run on this host.

    Returns:
        1 in a program that runs alone.
    """
    return int(instances.local_size()) if size() > 1 else 1


def allreduce(tensor: Any, op: Any = None) -> Any:
    """Reduces a tensor over all ranks.

    Args:
        tensor: Any shape and numeric dtype.
        op: `Average` (the default) or `Sum`.

    Returns:
        The reduced tensor.

    Raises:
        NotImplementedError: ``Adasum``.
        CollectiveError: Another operation, or a dtype that has no sum.
    """
    op = instances.require_op(op)
    total = job_collectives().allreduce(tensor, pairing_name(tensor, None))
    return total if op == instances.Sum else total / size()


def allgather(tensor: Any) -> Any:
    """Concatenates the ranks' tensors along their first dimension.

    Args:
        tensor: At least one dimension.

    Returns:
        The concatenation.
    """
    return job_collectives().allgather(tensor, tensor_name=pairing_name(tensor, None))


def broadcast(tensor: Any, root_rank: int = 0) -> Any:
    """The root's tensor, on every rank.

    Args:
        tensor: Any shape and dtype but strings.
        root_rank: The rank whose value counts.

    Returns:
        The root's value.
    """
    return job_collectives().broadcast(tensor, root_rank, pairing_name(tensor, None))
