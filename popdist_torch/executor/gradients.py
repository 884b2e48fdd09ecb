"""The gradients of one weight update: accumulated by backward passes, summed over instances."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.gradient_exchange import Facts, InstanceSum

if TYPE_CHECKING:
    from collections.abc import Sequence


class Gradients:
    """Gradients of one process's parameters, in their ``grad`` attributes.

    One update is `begin`, a `backward` per micro-batch and replica, `end`.

    Args:
        parameters: What is trained, in the order of the model.
        divisor: What the sum over all backward passes and replicas is divided by.

    Attributes:
        parameters: What is trained.
        waited: Seconds spent waiting for other instances since the object was made.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], divisor: float) -> None:
        self.waited = 0.0
        self.parameters = list(parameters)
        self._divisor = divisor

    def begin(self, facts: Sequence[int]) -> None:
        """Starts an update without gradients.

        Args:
            facts: A number of 24 bits for each fact that must be equal on all instances.
        """
        del facts
        for parameter in self.parameters:
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

    def end(self, scale: float) -> None:
        """Makes the gradients what the optimizer reads.

        Args:
            scale: The loss scaling, which they are divided by.
        """
        self._multiply(1 / (scale * self._divisor))

    def release(self) -> None:
        """Leaves the parameters alone from here on."""

    def _multiply(self, factor: float) -> None:
        present = [p.grad for p in self.parameters if p.grad is not None]
        if factor != 1 and present:
            torch._foreach_mul_(present, factor)  # one call for all of them


class SharedGradients(Gradients):
    """Gradients summed over all instances of the job.

    In the last backward pass, a hook notes each gradient that is complete; slices of the exchange
    whose gradients all are leave while the pass continues.

    Args:
        parameters: What is trained, in the order of the model.
        names: Their names.
        divisor: What the sum over all backward passes and replicas is divided by.
        horovod: The module ``horovod.torch``, initialised.
        label: Prefix for the names of what travels; equal on all instances.
        facts: What must be equal on all instances at each update.
    """

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        names: Sequence[str],
        divisor: float,
        horovod: Any,
        label: str,
        facts: Facts,
    ) -> None:
        super().__init__(parameters, divisor)
        # Backward passes complete the last layer's gradients first.
        self._reversed, self._names = self.parameters[::-1], list(names)[::-1]
        self._facts, self._instances = facts, int(horovod.size())
        self._stated: list[int] = []
        self._sum = InstanceSum(
            self._reversed,
            self._names,
            horovod,
            label,
            factor=1 / divisor,
            notes=lambda: facts.numbers(self._stated),
        )
        self._last = False
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._hook(i))  # type: ignore[no-untyped-call]
            for i, p in enumerate(self._reversed)
        ]

    def begin(self, facts: Sequence[int]) -> None:
        """Starts an update without gradients.

        Args:
            facts: A number of 24 bits for each fact that must be equal on all instances.
        """
        super().begin(facts)
        self._stated = list(facts)
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
        try:
            super().backward(loss, seed, replica=replica, last=last)
        finally:
            self._last = False

    def end(self, scale: float) -> None:
        """Waits for the sums of all instances, which become the parameters' gradients.

        Args:
            scale: The loss scaling, which they are divided by.
        """
        self._sum.finish()
        self._facts.require_equal(self._sum.noted, self._instances)
        self.waited = self._sum.waited
        self._multiply(1 / scale)

    def release(self) -> None:
        """Leaves the parameters alone from here on."""
        for hook in self._hooks:
            hook.remove()

    def _hook(self, index: int) -> Any:
        def collect(_parameter: torch.Tensor) -> None:
            if self._last:
                self._sum.collect(index)

        return collect


_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
"""Types that are added up in a wider one; Horovod does not take bfloat16 either."""

_PIECE_BYTES = 32 << 20
"""Bytes of all replicas that are exchanged at once."""


class OrderedGradients(Gradients):
    """Gradients of all replicas of the job, added up in the order of their global indices.

    Floating-point sums depend on their order, and MPI's depends on the number of ranks. Here every
    replica's gradient is kept apart. Each instance receives its share of the elements of all
    replicas (an alltoall), adds them up in the order of the replicas' global indices, and the sums
    go to everybody (an allgather). So they are equal bit for bit, however replicas are laid out.
    With one replica an instance that moves as many bytes as a ring allreduce; with several, every
    replica's gradient travels, and all of them are kept in memory.

    Args:
        parameters: What is trained, in the order of the model.
        divisor: What the sum over all backward passes and replicas is divided by.
        replicas: Number of replicas of each instance, in the order of the instances.
        instance: Which instance this is.
        horovod: The module ``horovod.torch``, initialised; None for a job of one instance.
        label: Prefix for the names of what travels; equal on all instances.
        facts: What must be equal on all instances at each update.
    """

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        divisor: float,
        replicas: Sequence[int],
        instance: int,
        horovod: Any,
        label: str,
        facts: Facts,
    ) -> None:
        super().__init__(parameters, divisor)
        self._replicas = list(replicas)
        self._instance = instance
        self._horovod = horovod
        self._label = label
        self._grads: list[list[torch.Tensor | None]] = []
        self._facts = facts
        self._stated: list[int] = []

    def begin(self, facts: Sequence[int]) -> None:
        """Starts an update without gradients.

        Args:
            facts: A number of 24 bits for each fact that must be equal on all instances.
        """
        super().begin(facts)
        self._stated = list(facts)
        self._grads = [[None] * len(self.parameters) for _ in range(self._replicas[self._instance])]

    def backward(self, loss: torch.Tensor, seed: float, *, replica: int, last: bool) -> None:
        """Adds the gradients of one replica's micro-batch to those of the same replica.

        Args:
            loss: The loss, of any shape; the sum of its elements is differentiated.
            seed: Factor of the gradients.
            replica: Local index of the replica.
            last: Whether no other backward pass of this process follows in this update.
        """
        for parameter, gradient in zip(self.parameters, self._grads[replica], strict=True):
            parameter.grad = gradient
        super().backward(loss, seed, replica=replica, last=last)
        self._grads[replica] = [parameter.grad for parameter in self.parameters]

    def end(self, scale: float) -> None:
        """Adds up the gradients of all replicas, which become the parameters' gradients.

        Args:
            scale: The loss scaling, which they are divided by.
        """
        started = time.perf_counter()
        used = self._used()
        for dtype in dict.fromkeys(p.dtype for p in self.parameters):
            members = [i for i, p in enumerate(self.parameters) if p.dtype == dtype and used[i]]
            if members:
                self._sum(members, dtype)
        for parameter, count in zip(self.parameters, used, strict=True):
            if not count:
                parameter.grad = None
        self.waited += time.perf_counter() - started
        super().end(scale)

    def _used(self) -> list[float]:
        mine = [any(g is not None for g in of_one) for of_one in zip(*self._grads, strict=True)]
        if self._horovod is None:
            return [float(used) for used in mine]
        numbers = torch.tensor([*mine, *self._facts.numbers(self._stated)], dtype=torch.float32)
        sums = self._horovod.allreduce(
            numbers, op=self._horovod.Sum, name=f"{self._label}.used"
        ).tolist()
        self._facts.require_equal(sums[len(mine) :], len(self._replicas))
        return sums[: len(mine)]  # type: ignore[no-any-return]

    def _sum(self, members: list[int], dtype: torch.dtype) -> None:
        """Makes the sums of all gradients of one type."""
        # A complex number travels as two real ones.
        wide = _WIDER.get(dtype, dtype).to_real()
        width = 2 if dtype.is_complex else 1
        rows = torch.stack([self._flat(gradients, members, wide) for gradients in self._grads])
        rows = rows.cpu() if self._horovod is not None else rows
        total = torch.empty(rows.shape[1], dtype=wide, device=rows.device)
        step = max(1, _PIECE_BYTES // (sum(self._replicas) * wide.itemsize))
        for start in range(0, rows.shape[1], step):
            piece = rows[:, start : start + step]
            total[start : start + step] = self._summed(piece, f"{self._label}.{dtype}.{start}")
        position = 0
        for index in members:
            parameter = self.parameters[index]
            size = width * parameter.numel()
            part = total[position : position + size]
            if width == 2:  # noqa: PLR2004 - as above
                part = torch.view_as_complex(part.view(-1, 2))
            part = part.view(parameter.shape)
            parameter.grad = part.to(device=parameter.device, dtype=dtype)
            position += size

    def _flat(
        self, gradients: list[torch.Tensor | None], members: list[int], dtype: torch.dtype
    ) -> torch.Tensor:
        parts = []
        for index in members:
            parameter, gradient = self.parameters[index], gradients[index]
            if gradient is None:
                gradient = torch.zeros_like(parameter)
            dense = (gradient.to_dense() if gradient.is_sparse else gradient).detach()
            real = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
            parts.append(real.reshape(-1).to(dtype))
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
