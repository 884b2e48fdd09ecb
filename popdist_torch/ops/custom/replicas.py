"""Collectives over replicas inside a model: gathering, sums and exchanges, with their gradients.

Local replicas of one process run one after the other and cannot wait for each other, so each
replica needs a process of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from popdist import backend
from popdist_torch.errors import CustomOperatorError
from popdist_torch.ops.custom.registry import host_op
from popdist_torch.ops.updates import replicas

if TYPE_CHECKING:
    from popdist_torch.ops.custom.registry import Call


def _horovod(name: str) -> Any:
    """The real Horovod, or None for one replica in all.

    Raises:
        CustomOperatorError: Several replicas share this process.
    """
    local, processes = replicas()
    if local > 1:
        raise CustomOperatorError(
            "PD364",
            f"{name} needs a process for each replica: local replicas run one after the other, and "
            "cannot wait for each other",
            value=f"{local} local replicas in {processes} processes",
            hint="start as many instances as replicas (poprun --num-instances=N --num-replicas=N)",
        )
    return backend.connect("torch", processes) if processes > 1 else None


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
    (value,) = call.inputs
    horovod = _horovod("ReplicatedAllGather")
    if horovod is None:
        return value.unsqueeze(0)
    return _apply(
        value,
        lambda own: horovod.allgather(own.unsqueeze(0)),
        lambda gradient: gradient[horovod.rank()].clone(),
    )


@host_op("ReplicatedAllReduce", "ai.graphcore")
def all_reduce(call: Call) -> torch.Tensor:
    """The sum over all replicas; its gradient is the sum of their gradients."""
    horovod = _horovod("ReplicatedAllReduce")
    (value,) = call.inputs
    if horovod is None:
        return value.clone()
    total = _sum(horovod)
    return _apply(value, total, total)


@host_op("ReplicatedAllReduceTP", "ai.graphcore")
def all_reduce_one_way(call: Call) -> torch.Tensor:
    """The sum over all replicas in the forward pass, or, with ``backwards``, in the other one."""
    horovod = _horovod("ReplicatedAllReduceTP")
    operation = str(call.attributes.get("op", "sum"))
    if operation != "sum":
        raise CustomOperatorError(
            "PD363",
            "ReplicatedAllReduceTP does not support this operation",
            value=operation,
            accepted="sum",
        )
    (value,) = call.inputs
    if horovod is None:
        return value.clone()
    both = (_sum(horovod), torch.clone)
    return _apply(value, *(both[::-1] if call.attributes.get("backwards") else both))


@host_op("ReplicatedAllToAll", "ai.graphcore")
def all_to_all(call: Call) -> torch.Tensor:
    """Sends part n of the first dimension to replica n, and gradients to where it was."""
    horovod = _horovod("ReplicatedAllToAll")
    (value,) = call.inputs
    if horovod is None:
        return value.clone()
    if value.shape[0] % horovod.size():
        raise CustomOperatorError(
            "PD365",
            "ReplicatedAllToAll cannot divide its first dimension over the replicas",
            value=list(value.shape),
            accepted=f"a multiple of {horovod.size()}",
        )

    def exchange(tensor: torch.Tensor) -> torch.Tensor:
        sent: torch.Tensor = horovod.alltoall(tensor)
        return sent

    return _apply(value, exchange, exchange)


def _sum(horovod: Any) -> Any:
    return lambda tensor: horovod.allreduce(tensor, op=horovod.Sum)
