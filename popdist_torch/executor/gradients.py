"""The gradients of one weight update, accumulated by backward passes and summed over instances.

Three classes share one interface: `Gradients` for one process, `SharedGradients` for several, and
`OrderedGradients` for sums that do not depend on the layout of replicas.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.executor.compiled import in_pieces
from popdist_torch.gradient_exchange import Facts, InstanceSum
from popdist_torch.rounds import ROUNDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from popdist_torch.executor.groups import Versions


class Gradients:
    """Gradients of one process's parameters, in their ``grad`` attributes.

    One update is `begin`, a `backward` per micro-batch and replica, `end`.

    Args:
        parameters: The trained parameters, in the order of the model.
        divisor: Divides the sum over all backward passes and replicas.

    Attributes:
        parameters: The trained parameters.
        waited: Seconds spent waiting for other instances since the object was made.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], divisor: float) -> None:
        self.waited = 0.0
        self.parameters = list(parameters)
        self._divisor = divisor

    def begin(self, facts: Sequence[int]) -> None:
        """Starts an update without gradients; facts are 24-bit numbers, equal on all instances."""
        del facts
        for parameter in self.parameters:
            parameter.grad = None

    def backward(self, loss: torch.Tensor, seed: float, *, replica: int, last: bool) -> None:
        """Adds the gradients of the sum of a loss's elements, times ``seed``, for one replica.

        ``last`` says that this process runs no other backward pass in this update.
        """
        del replica, last
        torch.autograd.backward(loss, torch.full_like(loss, seed))

    def suspended(self, replica: int) -> AbstractContextManager[None]:
        """Wraps the time in which a replica waits for others, in the middle of its run."""
        del replica
        return nullcontext()

    def compiling(self) -> AbstractContextManager[None]:
        """Wraps compiled forward passes, which may have to be compiled for the exchange."""
        return nullcontext()

    def end(self, scale: float, widen: Callable[[], None]) -> None:
        """Divides the gradients by the loss scaling and the divisor, for the optimizer.

        ``widen`` is called before, when they are complete: division could let them underflow.
        """
        widen()
        self.multiply(1 / (scale * self._divisor))

    def release(self) -> None:
        """Removes all hooks from the parameters."""

    def multiply(self, factor: float) -> None:
        """Multiplies all gradients."""
        present = [p.grad for p in self.parameters if p.grad is not None]
        if factor != 1 and present:
            torch._foreach_mul_(present, factor)  # one call for all of them


class SharedGradients(Gradients):
    """Gradients summed over all instances of the job.

    In the last backward pass, a hook notes each gradient that is complete. A slice of the exchange
    is sent as soon as all of its gradients are complete, while the pass continues.

    Args:
        parameters: The trained parameters, in the order of the model.
        names: Their names.
        divisor: Divides the sum over all backward passes and replicas.
        horovod: The module ``horovod.torch``, initialised.
        label: Prefix for the names of exchanged tensors; equal on all instances.
        facts: The facts that must be equal on all instances at each update.
        versions: The parameters that differ between groups of replicas.
    """

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        names: Sequence[str],
        divisor: float,
        horovod: Any,
        label: str,
        facts: Facts,
        versions: Versions,
    ) -> None:
        super().__init__(parameters, divisor)
        # Backward passes complete the last layer's gradients first.
        self._reversed, self._names = self.parameters[::-1], list(names)[::-1]
        self._facts, self._instances = facts, int(horovod.size())
        self._stated: list[int] = []
        # Parameters are one version of themselves in backward passes; these are all versions.
        self._whole = {
            i: torch.nn.Parameter(p.data, requires_grad=False)
            for i, p in enumerate(self._reversed)
            if versions.has(p)
        }
        self._sum = InstanceSum(
            [self._whole.get(i, p) for i, p in enumerate(self._reversed)],
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
            if i not in self._whole
        ]

    def begin(self, facts: Sequence[int]) -> None:
        """Starts an update without gradients; facts are 24-bit numbers, equal on all instances."""
        super().begin(facts)
        self._stated = list(facts)
        for index, whole in self._whole.items():
            whole.grad, whole.data = None, self._reversed[index].data
        self._sum.begin()

    def backward(self, loss: torch.Tensor, seed: float, *, replica: int, last: bool) -> None:
        """Adds the gradients of one replica's micro-batch; the last pass also sends the sums."""
        self._last = last
        try:
            super().backward(loss, seed, replica=replica, last=last)
        finally:
            self._last = False

    def compiling(self) -> AbstractContextManager[None]:
        """Wraps compiled forward passes, so that gradients come in pieces."""
        return in_pieces(self.parameters)

    def end(self, scale: float, widen: Callable[[], None]) -> None:
        """Waits for the sums over all instances, and stores them as the parameters' gradients."""
        for index, whole in self._whole.items():
            whole.grad, self._reversed[index].grad = self._reversed[index].grad, None
        self._sum.send()
        ROUNDS.settle()
        self._sum.finish()
        for index, whole in self._whole.items():
            self._reversed[index].grad = whole.grad
        self._facts.require_equal(self._sum.noted, self._instances)
        self.waited = self._sum.waited
        widen()
        self.multiply(1 / scale)

    def release(self) -> None:
        """Removes all hooks from the parameters."""
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
    """Gradients of all replicas of the job, summed in the order of their global indices.

    Floating-point sums depend on their order, and MPI's order depends on the number of ranks. Here
    every replica's gradient is kept apart. Each instance receives its share of the elements of all
    replicas (an alltoall) and sums them in the order of the replicas' global indices. All instances
    receive the sums (an allgather). So the sums are bit-identical in every layout of replicas.
    With one replica an instance, the two steps send as many bytes as a ring allreduce. With
    several, every replica's gradient is sent, and all of them are kept in memory.

    Args:
        parameters: The trained parameters, in the order of the model.
        divisor: Divides the sum over all backward passes and replicas.
        replicas: Number of replicas of each instance, in the order of the instances.
        instance: Index of this instance.
        horovod: The module ``horovod.torch``, initialised; None for a job of one instance.
        label: Prefix for the names of exchanged tensors; equal on all instances.
        facts: The facts that must be equal on all instances at each update.
        versions: The parameters that differ between groups of replicas.
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
        versions: Versions,
    ) -> None:
        super().__init__(parameters, divisor)
        self._replicas = list(replicas)
        self._instance = instance
        self._horovod = horovod
        self._label = label
        self._grads: list[list[torch.Tensor | None]] = []
        self._facts = facts
        self._versions = versions
        self._stated: list[int] = []
        self._inside: set[int] = set()  # replicas in their backward pass

    def begin(self, facts: Sequence[int]) -> None:
        """Starts an update without gradients; facts are 24-bit numbers, equal on all instances."""
        super().begin(facts)
        self._stated = list(facts)
        self._inside.clear()
        self._grads = [[None] * len(self.parameters) for _ in range(self._replicas[self._instance])]

    def backward(self, loss: torch.Tensor, seed: float, *, replica: int, last: bool) -> None:
        """Adds the gradients of one replica's micro-batch to those of the same replica."""
        self._take(replica)
        self._inside.add(replica)
        super().backward(loss, seed, replica=replica, last=last)
        self._inside.remove(replica)
        self._keep(replica)

    @contextmanager
    def suspended(self, replica: int) -> Iterator[None]:
        """Puts a replica's gradients aside, if it waits in its backward pass."""
        inside = replica in self._inside
        if inside:
            self._keep(replica)
        yield
        if inside:
            self._take(replica)

    def _take(self, replica: int) -> None:
        for parameter, gradient in zip(self.parameters, self._grads[replica], strict=True):
            parameter.grad = gradient

    def _keep(self, replica: int) -> None:
        self._grads[replica] = [parameter.grad for parameter in self.parameters]

    def end(self, scale: float, widen: Callable[[], None]) -> None:
        """Sums the gradients of all replicas, and stores them as the parameters' gradients."""
        started = time.perf_counter()
        ROUNDS.settle()
        used = self._used()
        for dtype in dict.fromkeys(p.dtype for p in self.parameters):
            members = [i for i, p in enumerate(self.parameters) if p.dtype == dtype and used[i]]
            if members:
                self._sum(members, dtype)
        for parameter, count in zip(self.parameters, used, strict=True):
            if not count:
                parameter.grad = None
        self.waited += time.perf_counter() - started
        super().end(scale, widen)

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
        """Sums all gradients of one dtype."""
        # A complex number is sent as two real ones.
        wide = _WIDER.get(dtype, dtype).to_real()
        width = 2 if dtype.is_complex else 1
        local = range(len(self._grads))
        rows = torch.stack([self._flat(replica, members, wide) for replica in local])
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
            # A GPU adds up in another order where memory begins elsewhere, as in a norm.
            copy = total.device.type != "cpu"
            parameter.grad = part.to(device=parameter.device, dtype=dtype, copy=copy)
            position += size

    def _flat(self, replica: int, members: list[int], dtype: torch.dtype) -> torch.Tensor:
        parts = []
        for index in members:
            parameter = self.parameters[index]
            gradient = self._versions.whole(parameter, self._grads[replica][index], replica)
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
    """Adds rows one after the other; ``sum`` may use another order for another shape."""
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total
