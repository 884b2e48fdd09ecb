"""The gradients of one weight update: accumulated by backward passes, summed over instances."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.gradient_exchange import InstanceSum

if TYPE_CHECKING:
    from collections.abc import Sequence


class Gradients:
    """Gradients of one process's parameters, in their ``grad`` attributes.

    One update is `begin`, a `backward` per micro-batch and replica, `end`.

    Args:
        parameters: What is trained, in the order of the model.

    Attributes:
        waited: Seconds spent waiting for other instances since the object was made.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self.waited = 0.0
        self._parameters = list(parameters)

    def begin(self) -> None:
        """Starts an update without gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def backward(self, loss: torch.Tensor, seed: float, *, replica: int, last: bool) -> None:
        """Adds the gradients of one replica's micro-batch.

        Args:
            loss: The loss, of any shape; the sum of its elements is differentiated.
            seed: Factor of the gradients.
            replica: Local index of the replica.
            last: Whether no other backward pass of this process follows in this update.
        """
        del replica, last
        torch.autograd.backward(loss, torch.full_like(loss, seed))

    def end(self, factor: float) -> None:
        """Makes the gradients what the optimizer reads.

        Args:
            factor: What to multiply them with.
        """
        present = [p.grad for p in self._parameters if p.grad is not None]
        if factor != 1 and present:
            torch._foreach_mul_(present, factor)  # one call for all of them

    def release(self) -> None:
        """Leaves the parameters without gradients."""
        Gradients.begin(self)


class SharedGradients(Gradients):
    """Gradients summed over all instances of the job.

    In the last backward pass, a hook notes each gradient that is complete; slices of the exchange
    whose gradients all are leave while the pass goes on.

    Args:
        parameters: What is trained, in the order of the model.
        names: Their names.
        horovod: The module ``horovod.torch``, initialised.
        label: Prefix for the names of what travels; equal on all instances.
    """

    def __init__(
        self, parameters: Sequence[torch.Tensor], names: Sequence[str], horovod: Any, label: str
    ) -> None:
        # Backward passes complete the last layer's gradients first.
        super().__init__(list(reversed(parameters)))
        self._sum = InstanceSum(self._parameters, list(reversed(names)), horovod, label)
        self._last = False
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._hook(i))  # type: ignore[no-untyped-call]
            for i, p in enumerate(self._parameters)
        ]

    def begin(self) -> None:
        """Starts an update without gradients."""
        super().begin()
        self._sum.begin()

    def backward(self, loss: torch.Tensor, seed: float, *, replica: int, last: bool) -> None:
        """Adds the gradients of one replica's micro-batch; sends them off if they are the last.

        Args:
            loss: The loss, of any shape; the sum of its elements is differentiated.
            seed: Factor of the gradients.
            replica: Local index of the replica.
            last: Whether no other backward pass of this process follows in this update.
        """
        self._last = last
        super().backward(loss, seed, replica=replica, last=last)
        self._last = False

    def end(self, factor: float) -> None:
        """Waits for the sums of all instances, which become the parameters' gradients.

        Args:
            factor: What to multiply them with.
        """
        self._sum.finish()
        self.waited = self._sum.waited
        super().end(factor)

    def release(self) -> None:
        """Leaves the parameters without gradients and hooks."""
        super().release()
        for hook in self._hooks:
            hook.remove()

    def _hook(self, index: int) -> Any:
        def collect(_parameter: torch.Tensor) -> None:
            if self._last:
                self._sum.collect(index)

        return collect


# Gradients summed in one order, however replicas are laid out: the sums are equal bit for bit.
#
# Floating-point sums depend on their order, and MPI's depends on the number of ranks. Here every
# replica's gradient is kept apart. Each instance receives its share of the elements of all
# replicas (an alltoall), adds them up in the order of the replicas' global indices, and the sums
# go to everybody (an allgather). With one replica an instance that moves as many bytes as a ring
# allreduce; with several, every replica's gradient travels, and all of them are kept in memory.


_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
"""Types that are added up in a wider one; Horovod does not take bfloat16 either."""

_PIECE_BYTES = 32 << 20
"""Bytes of all replicas that are exchanged at once."""


class OrderedGradients(Gradients):
    """Gradients of all replicas of the job, added up in the order of their global indices.

    Args:
        parameters: What is trained, in the order of the model.
        replicas: Number of replicas of each instance, in the order of the instances.
        instance: Which instance this is.
        horovod: The module ``horovod.torch``, initialised; None for a job of one instance.
        label: Prefix for the names of what travels; equal on all instances.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        replicas: Sequence[int],
        instance: int,
        horovod: Any,
        label: str,
    ) -> None:
        super().__init__(parameters)
        self._replicas = list(replicas)
        self._instance = instance
        self._horovod = horovod
        self._label = label
        self._grads: list[list[torch.Tensor | None]] = []

    def begin(self) -> None:
        """Starts an update without gradients."""
        super().begin()
        self._grads = [
            [None] * len(self._parameters) for _ in range(self._replicas[self._instance])
        ]

    def backward(self, loss: torch.Tensor, seed: float, *, replica: int, last: bool) -> None:
        """Adds the gradients of one replica's micro-batch to those of the same replica.

        Args:
            loss: The loss, of any shape; the sum of its elements is differentiated.
            seed: Factor of the gradients.
            replica: Local index of the replica.
            last: Whether no other backward pass of this process follows in this update.
        """
        for parameter, gradient in zip(self._parameters, self._grads[replica], strict=True):
            parameter.grad = gradient
        super().backward(loss, seed, replica=replica, last=last)
        self._grads[replica] = [parameter.grad for parameter in self._parameters]

    def end(self, factor: float) -> None:
        """Adds up the gradients of all replicas, which become the parameters' gradients.

        Args:
            factor: What to multiply them with.
        """
        started = time.perf_counter()
        used = self._used()
        for dtype in dict.fromkeys(p.dtype for p in self._parameters):
            members = [i for i, p in enumerate(self._parameters) if p.dtype == dtype and used[i]]
            if members:
                self._sum(members, dtype)
        for parameter, count in zip(self._parameters, used, strict=True):
            if not count:
                parameter.grad = None
        self.waited += time.perf_counter() - started
        super().end(factor)

    def _used(self) -> list[float]:
        mine = [any(g is not None for g in of_one) for of_one in zip(*self._grads, strict=True)]
        counts = torch.tensor(mine, dtype=torch.float32)
        if self._horovod is not None:
            name = f"{self._label}.used"
            counts = self._horovod.allreduce(counts, op=self._horovod.Sum, name=name)
        return counts.tolist()

    def _sum(self, members: list[int], dtype: torch.dtype) -> None:
        """Makes the sums of all gradients of one type."""
        wide = _WIDER.get(dtype, dtype)
        rows = torch.stack([self._flat(gradients, members, wide) for gradients in self._grads])
        rows = rows.cpu() if self._horovod is not None else rows
        total = torch.empty(rows.shape[1], dtype=wide, device=rows.device)
        step = max(1, _PIECE_BYTES // (sum(self._replicas) * wide.itemsize))
        for start in range(0, rows.shape[1], step):
            piece = rows[:, start : start + step]
            total[start : start + step] = self._summed(piece, f"{self._label}.{dtype}.{start}")
        position = 0
        for index in members:
            parameter = self._parameters[index]
            part = total[position : position + parameter.numel()].view(parameter.shape)
            parameter.grad = part.to(device=parameter.device, dtype=dtype)
            position += parameter.numel()

    def _flat(
        self, gradients: list[torch.Tensor | None], members: list[int], dtype: torch.dtype
    ) -> torch.Tensor:
        parts = []
        for index in members:
            parameter, gradient = self._parameters[index], gradients[index]
            if gradient is None:
                parts.append(torch.zeros(parameter.numel(), dtype=dtype, device=parameter.device))
            else:
                dense = gradient.to_dense() if gradient.is_sparse else gradient
                parts.append(dense.reshape(-1).to(dtype))
        return torch.cat(parts)

    def _summed(self, piece: torch.Tensor, name: str) -> torch.Tensor:
        """Sums the rows ``[local replicas, n]`` of all instances; returns ``[n]``."""
        if self._horovod is None:
            return _in_order(piece)
        instances = len(self._replicas)
        shares = [len(share) for share in torch.arange(piece.shape[1]).tensor_split(instances)]
        sent = torch.cat([share.reshape(-1) for share in torch.split(piece, shares, dim=1)])
        splits = torch.tensor([share * piece.shape[0] for share in shares], dtype=torch.int32)
        received, _ = self._horovod.alltoall(sent, splits=splits, name=f"{name}.shares")
        mine = shares[self._instance]
        of_all = received.view(sum(self._replicas), mine)
        gathered: torch.Tensor = self._horovod.allgather(_in_order(of_all), name=f"{name}.sums")
        return gathered


def _in_order(rows: torch.Tensor) -> torch.Tensor:
    """Adds up rows one after the other; ``sum`` may take another order for another shape."""
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total
