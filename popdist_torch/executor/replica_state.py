"""What every local replica has of its own, as plain values that a checkpoint can keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from popdist_torch.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from popdist_torch.executor.step import Replicas
    from popdist_torch.options.placement import Placement

Row = dict[str, Any]


def rows(replicas: Replicas, here: Placement) -> list[Row]:
    """The states of all local replicas.

    Args:
        replicas: The replicas.
        here: Their place in the job.

    Returns:
        For each its global index, its random stream and its buffers.
    """
    return [
        {
            "replica": here.first_replica + local,
            "stream": list(replicas.streams.state[local]),
            "buffers": replicas.model.buffers.state(local),
        }
        for local in range(here.local_replicas)
    ]


def of_this_process(given: Iterable[Row], here: Placement) -> list[Row]:
    """Picks the states of the local replicas.

    Args:
        given: States of all replicas of a job.
        here: The place of this process in the job.

    Returns:
        One for each local replica; none where none were given.

    Raises:
        CheckpointError: There are states, but none of some replica here.
    """
    by_index = {row["replica"]: row for row in given}
    wanted = range(here.first_replica, here.first_replica + here.local_replicas)
    if by_index and (len(by_index) != here.total_replicas or not by_index.keys() >= set(wanted)):
        raise CheckpointError(
            "PD307",
            "the checkpoint is of another number of replicas",
            value=f"{len(by_index)} replicas then, {here.total_replicas} now",
            hint="resume with as many replicas as before; read()['shared'] has the weights for a "
            "run that need not be bit-identical",
        )
    return [by_index[index] for index in wanted] if by_index else []


def restore(replicas: Replicas, loaded: list[Row]) -> None:
    """Brings the local replicas to their states.

    Args:
        replicas: The replicas.
        loaded: What `of_this_process` returned.
    """
    if not loaded:
        return
    replicas.streams.state = [tuple(row["stream"]) for row in loaded]
    for local, row in enumerate(loaded):
        replicas.model.buffers.load(local, row["buffers"])
