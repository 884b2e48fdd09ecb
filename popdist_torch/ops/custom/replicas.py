"""Collectives over replicas inside a model: gathering, sums and exchanges, with their gradients.

The meanings are those of the published sources.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.errors import CustomOperatorError
from popdist_torch.ops.custom.registry import host_op
from popdist_torch.ops.over_replicas import Replica, gathered, summed, total_of

if TYPE_CHECKING:
    from popdist_torch.ops.custom.registry import Call

    Values = list[torch.Tensor]


class _Collective(torch.autograd.Function):
    """A collective forward and another one backward; both keep the tensor's type."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, forward: Any, backward: Any) -> torch.Tensor:
        """Calls the first."""
        ctx.back = backward
        result: torch.Tensor = forward(value.contiguous())
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Calls the second."""
        return ctx.back(gradients[0].contiguous()), None, None


def _apply(value: torch.Tensor, forward: Any, backward: Any) -> torch.Tensor:
    result: torch.Tensor = _Collective.apply(value, forward, backward)  # type: ignore[no-untyped-call]
    return result


@host_op("ReplicatedAllGather", "ai.graphcore")
def all_gather(call: Call) -> torch.Tensor:
    """The tensors of all replicas along a new first dimension; its gradient is the own part.

    The published gradient assumes that all replicas have equal gradients, so it sums nothing.
    """
    replica = Replica("ReplicatedAllGather")
    (value,) = call.inputs
    return _apply(
        value,
        lambda own: replica.exchange(own, gathered),
        lambda gradient: gradient[replica.index].clone(),
    )


@host_op("ReplicatedAllReduce", "ai.graphcore")
def all_reduce(call: Call) -> torch.Tensor:
    """The sum over all replicas; its gradient is the sum of their gradients."""
    return total_of(Replica("ReplicatedAllReduce"), call.inputs[0])


@host_op("ReplicatedAllReduceTP", "ai.graphcore")
def all_reduce_one_way(call: Call) -> torch.Tensor:
    """The sum over all replicas in the forward pass, or, with ``backwards``, in the other one."""
    replica = Replica("ReplicatedAllReduceTP")
    operation = str(call.attributes.get("op", "sum"))
    if operation != "sum":
        raise CustomOperatorError(
            "PD363",
            "ReplicatedAllReduceTP does not support this operation",
            value=operation,
            accepted="sum",
        )
    both = (partial(replica.exchange, join=summed), torch.clone)
    return _apply(call.inputs[0], *(both[::-1] if call.attributes.get("backwards") else both))


@host_op("ReplicatedAllToAll", "ai.graphcore")
def all_to_all(call: Call) -> torch.Tensor:
    """Sends part n of the first dimension to replica n, and gradients to where it was."""
    replica = Replica("ReplicatedAllToAll")
    (value,) = call.inputs
    if value.shape[0] % replica.total:
        raise CustomOperatorError(
            "PD365",
            "ReplicatedAllToAll cannot divide its first dimension over the replicas",
            value=list(value.shape),
            accepted=f"a multiple of {replica.total}",
        )
    exchange = partial(replica.exchange, join=partial(_transposed, replica.total))
    return _apply(value, exchange, exchange)


def _transposed(replicas: int, values: Values, horovod: Any) -> Values:
    """Part n of the values of all replicas, for each local replica n.

    ``parts`` is ``[from, to, rows, ...]``, of local replicas to all, and then of all to local ones.
    """
    local = len(values)
    parts = torch.stack([torch.stack(value.chunk(replicas)) for value in values])
    if horovod is not None:
        counts = horovod.allgather(torch.tensor([local])).tolist()
        sent = torch.cat([part.flatten(0, 1) for part in torch.split(parts, counts, dim=1)])
        splits = torch.tensor([local * count for count in counts], dtype=torch.int32)
        received, sizes = horovod.alltoall(sent, splits=splits)
        of_each = received.split(sizes.tolist())
        parts = torch.cat([one.view(-1, local, *one.shape[1:]) for one in of_each])
    return [parts[:, n].flatten(0, 1).clone() for n in range(local)]
